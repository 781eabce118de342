"""The native decoder against torch's: the same engine, the same requests, interleaved in one run.

    python bench/kernels.py [--json FILE] [--check]

Prints medians of step times and the ratio of medians. `--check` exits with 1 if the native kernels are not
faster everywhere, or are not to be had here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from workers.config import EngineConfig, Kernels
from workers.engine import Engine
from workers.load.model import load_model
from workers.model.native import library
from workers.sampling.params import SamplingParams
from workers.wire import Submit

SIDES: tuple[Kernels, ...] = ("auto", "torch")
PROMPT_TOKENS, STEPS, ROUNDS = 128, 12, 5
BATCHES = (1, 8, 16, 32)


def engine_of(kernels: Kernels) -> Engine:
    model = load_model("builtin:smollm2-135m", "bf16", name="smollm2-135m", kernels=kernels)
    config = EngineConfig(kernels=kernels, kv_memory_bytes=512 << 20, target_step_s=10.0)
    engine = Engine(model, config, b"bench")
    engine.warm_up()
    return engine


def measure(engine: Engine, batch: int, tag: str) -> tuple[float, list[float]]:
    """Seconds of the step that computes a 512-token prompt's worth, and of each decode step of the batch."""
    params = SamplingParams(max_tokens=STEPS + 8, temperature=0.0, ignore_eos=True)
    for index in range(batch):
        prompt = [100 + (31 * index + 7 * place + len(tag)) % 40_000 for place in range(PROMPT_TOKENS)]
        engine.submit(Submit(f"{tag}-{index}", prompt, params, salt=tag.encode()))
    prefill_s, decodes_s = 0.0, []
    while engine.has_work:
        started = time.perf_counter()
        output = engine.step()
        seconds = time.perf_counter() - started
        if output.num_prefill_tokens:
            prefill_s += seconds
        elif output.num_decodes == batch:
            decodes_s.append(seconds)
    return prefill_s, decodes_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    options = parser.parse_args()
    if library.load() is None:
        print("the native kernels cannot be had on this machine")
        return int(options.check)
    engines = {side: engine_of(side) for side in SIDES}
    results: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        prefills: dict[str, list[float]] = {side: [] for side in SIDES}
        decodes: dict[str, list[float]] = {side: [] for side in SIDES}
        for round_ in range(ROUNDS):
            for side in SIDES:
                prefill_s, decodes_s = measure(engines[side], batch, f"{side}-{batch}-{round_}")
                prefills[side].append(prefill_s)
                decodes[side] += decodes_s
        for what, samples in (("prefill", prefills), ("decode", decodes)):
            native_s, torch_s = (statistics.median(samples[side]) for side in SIDES)
            results[f"{what} of {batch}"] = {
                "native_ms": native_s * 1e3,
                "torch_ms": torch_s * 1e3,
                "ratio": torch_s / native_s,
            }
    print(f"{'step':16}{'native ms':>12}{'torch ms':>12}{'torch / native':>16}")
    for name, row in results.items():
        print(f"{name:16}{row['native_ms']:12.1f}{row['torch_ms']:12.1f}{row['ratio']:16.2f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=2)
    missed = [name for name, row in results.items() if row["ratio"] <= 1.0]
    for name in missed:
        print(f"missed: {name}: native kernels are not faster", file=sys.stderr)
    return int(bool(missed) and options.check)


if __name__ == "__main__":
    sys.exit(main())
