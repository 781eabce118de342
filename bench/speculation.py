"""Drafts by n-grams against none: the same engine and requests, interleaved in one run.

    python bench/speculation.py [--rounds N] [--json FILE] [--check]

Two workloads: copying (a source file, then the same file once more, as in edits and quotations) and prose,
sampled so that it repeats little. The answers are the same with and without drafts; only the time differs.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from report import Report, arguments_parser

from deploy.bench.words import prose
from workers.config import EngineConfig, Speculation
from workers.engine import Engine
from workers.load.model import LoadedModel, load_model
from workers.sampling.params import SamplingParams
from workers.wire import Submit

SIDES: tuple[Speculation, ...] = ("ngram", "none")
BATCHES = (1, 4, 8, 16, 32)
NUM_OUTPUT_TOKENS = 96
COPIED_LINES = 40
SOURCE = Path(__file__).parents[1] / "workers/scheduler.py"


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    text_of: Callable[[int], str]
    temperature: float
    least: float  # of the time without drafts to that with them
    batches: tuple[int, ...]  # at which that is asked


def copying(number: int) -> str:
    lines = SOURCE.read_text().splitlines()
    first = 8 * number % (len(lines) - COPIED_LINES)
    part = lines[first : first + COPIED_LINES]
    return "\n".join(["# A file:", *part, "", "# The same file once more:", *part[:3]]) + "\n"


def prosaic(number: int) -> str:
    return "Write a short story.\n\n" + prose(random.Random(f"prose {number}"), 60)


WORKLOADS = (
    Workload("copying", copying, 0.0, 2.0, (1,)),
    Workload("prose", prosaic, 1.0, 0.97, BATCHES),
)


class Bench:
    """An engine of each side over one model."""

    def __init__(self, model: LoadedModel) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_str(model.card.tokenizer_json.decode())
        self._engines = {side: Engine(model, _config(side), b"bench") for side in SIDES}
        for engine in self._engines.values():
            engine.warm_up()
        self.num_drafted = self.num_accepted = 0

    def measure(self, side: Speculation, texts: list[str], temperature: float, tag: str) -> float:
        """Milliseconds per token and sequence, from the last prompt's end on."""
        engine = self._engines[side]
        for index, text in enumerate(texts):
            params = SamplingParams(
                max_tokens=NUM_OUTPUT_TOKENS, temperature=temperature, seed=index, ignore_eos=True
            )
            prompt = self._tokenizer.encode(text, add_special_tokens=False).ids
            engine.submit(Submit(f"{tag}-{index}", prompt, params, salt=tag.encode()))
        decode_s, num_tokens = 0.0, 0
        while engine.has_work:
            started_s = time.perf_counter()
            output = engine.step()
            if not output.num_prefill_tokens:
                decode_s += time.perf_counter() - started_s
                num_tokens += output.num_decodes + output.num_accepted_tokens
            self.num_drafted += output.num_drafted_tokens
            self.num_accepted += output.num_accepted_tokens
        return decode_s / num_tokens * len(texts) * 1e3


def _config(side: Speculation) -> EngineConfig:
    return EngineConfig(
        speculation=side,
        max_draft_tokens=15,
        kv_memory_bytes=512 << 20,
        target_step_s=10.0,
        max_step_tokens=2048,
    )


def main() -> int:
    arguments = arguments_parser(__doc__ or "", rounds=5).parse_args()
    bench = Bench(load_model("builtin:smollm2-135m", "auto", name="smollm2-135m"))
    report = Report("drafts by n-grams against none", ("ngram", "none"))
    for workload in WORKLOADS:
        for batch in BATCHES:
            name = f"{workload.name}, {batch} stream{'s' if batch > 1 else ''}"
            values: dict[Speculation, list[float]] = {side: [] for side in SIDES}
            bench.num_drafted = bench.num_accepted = 0
            for round_ in range(arguments.rounds + 1):
                texts = [workload.text_of(100 * round_ + number) for number in range(batch)]
                for side in SIDES if round_ % 2 else SIDES[::-1]:
                    tag = f"{name}-{round_}-{side}"
                    elapsed_ms = bench.measure(side, texts, workload.temperature, tag)
                    if round_ > 0:
                        values[side].append(elapsed_ms)
            figure = report.compare(name, "ms/token", values["ngram"], values["none"])
            if bench.num_drafted:
                report.fact(f"{name}: share of drafts kept", round(bench.num_accepted / bench.num_drafted, 2))
            if batch in workload.batches:
                report.bar(f"{name}: none to ngram", 1 / figure.ratio, "≥", workload.least)
    return report.finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
