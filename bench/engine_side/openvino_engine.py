"""OpenVINO GenAI's continuous batching, in its own process; run with its environment's Python.

    python openvino_engine.py MODEL_DIR PRECISION KV_GIB

PRECISION is INFERENCE_PRECISION_HINT (bf16 or f32); weights are what the directory was exported with.
"""

import sys

from closed_loop import claim_stdout, serve

MAX_STEP_TOKENS = 256


class OpenVinoEngine:
    def __init__(self, folder: str, precision: str, kv_gib: int) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = kv_gib
        scheduler.max_num_batched_tokens = MAX_STEP_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        scheduler.max_num_seqs = 64
        self._genai = openvino_genai
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            folder, scheduler, "CPU", {"INFERENCE_PRECISION_HINT": precision}
        )
        self._handles = {}
        self._num_submitted = 0

    def submit(self, request_id: int, prompt_ids: list[int], max_tokens: int) -> None:
        import numpy
        import openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        self._num_submitted += 1
        prompt = openvino.Tensor(numpy.array([prompt_ids], dtype=numpy.int64))
        self._handles[request_id] = self._pipeline.add_request(self._num_submitted, prompt, config)

    def step(self) -> list[tuple[int, int, bool]]:
        self._pipeline.step()
        progress = []
        for request_id, handle in list(self._handles.items()):
            num_tokens = 0
            while handle.can_read():
                num_tokens += sum(len(output.generated_ids) for output in handle.read().values())
            has_ended = handle.get_status() != self._genai.GenerationStatus.RUNNING
            if has_ended:
                del self._handles[request_id]
            if num_tokens or has_ended:
                progress.append((request_id, num_tokens, has_ended))
        return progress


if __name__ == "__main__":
    stdout = claim_stdout()
    serve(OpenVinoEngine(sys.argv[1], sys.argv[2], int(sys.argv[3])), stdout)
