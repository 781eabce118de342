"""The native decoder against torch's, and its weight formats against each other: one engine, one load,
interleaved in one run.

    python bench/kernels.py [--rounds N] [--json FILE] [--check]

Prints medians of step times. `--check` exits with 1 if the native decoder is not faster than torch's
everywhere, if fewer bits do not decode one stream faster by what is asked, or if it is not to be had here.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from report import Report, arguments_parser

from workers.config import EngineConfig, Kernels, Weights
from workers.engine import Engine
from workers.load.model import load_model
from workers.model.native import library
from workers.sampling.params import SamplingParams
from workers.wire import Submit

PROMPT_TOKENS, STEPS = 128, 24
BATCHES = (1, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Side:
    weights: Weights
    kernels: Kernels
    min_speed_up: float  # of decoding one stream, against bf16 on the native decoder


BASE = Side("bf16", "auto", 1.0)
OTHERS = {
    "torch": Side("bf16", "torch", 0.0),
    "int8": Side("int8", "auto", 1.3),
    "int4": Side("int4", "auto", 1.8),
}


def engine_of(side: Side) -> Engine:
    model = load_model("builtin:smollm2-135m", side.weights, name="smollm2-135m", kernels=side.kernels)
    config = EngineConfig(kernels=side.kernels, kv_memory_bytes=256 << 20, target_step_s=10.0)
    engine = Engine(model, config, b"bench")
    engine.warm_up()
    return engine


def measure(engine: Engine, batch: int, tag: str) -> tuple[float, list[float]]:
    """Milliseconds that all prompts take, and of each decode step of the whole batch."""
    params = SamplingParams(max_tokens=STEPS + 8, temperature=0.0, ignore_eos=True)
    for index in range(batch):
        prompt = [100 + (31 * index + 7 * place + len(tag)) % 40_000 for place in range(PROMPT_TOKENS)]
        engine.submit(Submit(f"{tag}-{index}", prompt, params, salt=tag.encode()))
    prefill_ms, decodes_ms = 0.0, []
    while engine.has_work:
        started = time.perf_counter()
        output = engine.step()
        elapsed_ms = (time.perf_counter() - started) * 1e3
        if output.num_prefill_tokens:
            prefill_ms += elapsed_ms
        elif output.num_decodes == batch:
            decodes_ms.append(elapsed_ms)
    return prefill_ms, decodes_ms


def main() -> int:
    arguments = arguments_parser(__doc__ or "", rounds=5).parse_args()
    if library.load() is None:
        print("the native decoder cannot be had on this machine", file=sys.stderr)
        return int(arguments.check)
    engines = {"bf16": engine_of(BASE)} | {name: engine_of(side) for name, side in OTHERS.items()}
    times: dict[tuple[str, str, int], list[float]] = {}
    for round_ in range(arguments.rounds):
        for batch in BATCHES:
            for name, engine in engines.items():
                prefill_ms, decodes_ms = measure(engine, batch, f"{name}-{batch}-{round_}")
                times.setdefault((name, "prompts", batch), []).append(prefill_ms)
                times.setdefault((name, "decode step", batch), []).extend(decodes_ms)
    status = 0
    for name, side in OTHERS.items():
        report = Report(f"bf16 on the native decoder, and {name}", ("bf16", name))
        for phase in ("prompts", "decode step"):
            for batch in BATCHES:
                ours, theirs = times["bf16", phase, batch], times[name, phase, batch]
                figure = report.compare(f"{phase} of {batch}", "ms", ours, theirs)
                if name == "torch":
                    report.bar(f"{phase} of {batch}, torch to native", 1 / figure.ratio, "≥", 1.0)
                elif phase == "decode step" and batch == 1:
                    report.bar(f"decode of 1, bf16 to {name}", figure.ratio, "≥", side.min_speed_up)
        status |= report.finish(arguments, part=name)
    return status


if __name__ == "__main__":
    sys.exit(main())
