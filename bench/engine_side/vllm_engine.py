"""vLLM's engine in its own process, without its server; run with its environment's Python.

python vllm_engine.py MODEL_DIR DTYPE
"""

import os
import sys

from closed_loop import claim_stdout, serve

MAX_MODEL_TOKENS = 4096


class VllmEngine:
    def __init__(self, folder: str, dtype: str) -> None:
        from vllm import EngineArgs, LLMEngine

        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder,
                dtype=dtype,
                max_model_len=MAX_MODEL_TOKENS,
                max_num_seqs=64,
                enable_prefix_caching=True,
                disable_log_stats=True,
            )
        )
        self._num_submitted = 0
        self._numbers: dict[str, int] = {}

    def submit(self, request_id: int, prompt_ids: list[int], max_tokens: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._num_submitted += 1
        name = str(self._num_submitted)
        self._numbers[name] = request_id
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt_ids}, params)

    def step(self) -> list[tuple[int, int, bool]]:
        return [
            (
                self._numbers[output.request_id],
                sum(len(completion.token_ids) for completion in output.outputs),
                output.finished,
            )
            for output in self._engine.step()
        ]


if __name__ == "__main__":
    stdout = claim_stdout()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    serve(VllmEngine(sys.argv[1], sys.argv[2]), stdout)
