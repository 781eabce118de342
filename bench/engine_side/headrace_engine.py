"""Our engine with nothing around it: submit, step, look at the clock.

    python headrace_engine.py SPEC.yaml

The engine is that of the one worker which the specification describes.
"""

import os
import sys
from pathlib import Path

from closed_loop import claim_stdout, serve


class HeadraceEngine:
    def __init__(self, spec_file: Path) -> None:
        from cluster.spec import load_spec
        from workers.engine import Engine
        from workers.load.model import load_model

        [worker] = load_spec(spec_file).worker_configs(b"", os.cpu_count() or 1)
        config = worker.engine
        model = load_model(
            worker.source, config.weights, name=worker.model, device=config.device, kernels=config.kernels
        )
        self._engine = Engine(model, config, hash_key=b"bench")
        self._engine.warm_up()

    def submit(self, request_id: int, prompt_ids: list[int], max_tokens: int) -> None:
        from workers.sampling.params import SamplingParams
        from workers.wire import Submit

        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self._engine.submit(Submit(str(request_id), prompt_ids, params))

    def step(self) -> list[tuple[int, int, bool]]:
        output = self._engine.step()
        for delta in output.deltas:
            if delta.error is not None:
                raise RuntimeError(f"the engine failed: {delta.error}")
        finished = set(output.finished_ids)
        return [
            (int(delta.request_id), len(delta.token_ids), delta.request_id in finished)
            for delta in output.deltas
        ]


if __name__ == "__main__":
    stdout = claim_stdout()
    serve(HeadraceEngine(Path(sys.argv[1])), stdout)
