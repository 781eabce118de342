"""What the cluster costs over its own engine: TTFT added for a single stream, throughput kept at 16.

One cluster (one worker, one router) and one bare engine with the same configuration are up at the same time
and measured in turns with the same prompts; whoever is not measured is stopped. The cluster is asked over
HTTP with text, so HTTP, tokenizing, placement, the worker wire and detokenizing are all in its figures.

    python bench/overhead.py [--rounds N] [--json FILE] [--check]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from engine_process import EngineProcess, headrace_engine, tokenizer_of
from headrace import MODEL, start_headrace, write_spec
from prompts import Point
from report import Report, arguments_parser
from servers import Server, end_cleanly_on_sigterm
from turns import ServedSide, Side, Turns

from deploy import processes

SOURCE = "builtin:smollm2-135m"
SINGLE = Point("1 stream", 1, num_requests=10, num_words=115, num_output_tokens=32)
BATCH = Point("16 streams", 16, num_requests=64, num_words=115, num_output_tokens=128)
MAX_ADDED_TTFT_MS = 5.0
MIN_THROUGHPUT = 0.95


def report(turns: Turns, cluster: Side, engine: Side, idle_cores: float) -> Report:
    result = Report("Headrace's cluster against its bare engine", ("cluster", "engine"))

    def compare(point: Point, figure: str, name: str, unit: str) -> tuple[float, float]:
        comparison = result.compare(
            f"{point.name}: {name}",
            unit,
            turns.values(cluster, point, figure),
            turns.values(engine, point, figure),
        )
        return comparison.ratio, comparison.difference

    _, added_ms = compare(SINGLE, "ttft_ms", "TTFT p50", "ms")
    compare(SINGLE, "itl_ms", "ITL p50", "ms")
    kept, _ = compare(BATCH, "tokens_per_s", "throughput", "tokens/s")
    compare(BATCH, "ttft_ms", "TTFT p50", "ms")
    result.bar("added TTFT p50, 1 stream", added_ms, "≤", MAX_ADDED_TTFT_MS, " ms")
    result.bar("throughput of the cluster to the engine's, 16 streams", kept, "≥", MIN_THROUGHPUT)
    result.fact("cores that the cluster uses when nothing is asked of it", round(idle_cores, 3))
    result.fact("cores used by others, most in one measurement", round(turns.most_disturbed, 2))
    return result


def main() -> int:
    arguments = arguments_parser(__doc__ or "", rounds=5).parse_args()
    processes.adopt_orphans()
    end_cleanly_on_sigterm()
    engine: EngineProcess | None = None
    server: Server | None = None
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        try:
            spec = write_spec(SOURCE, Path(folder) / "headrace.yaml")
            tokenizer = tokenizer_of(SOURCE)
            engine = headrace_engine("bare engine", spec, tokenizer, Path(folder) / "engine.log")
            server = start_headrace(spec, Path(folder))
            idle_cores = server.idle_cores()
            server.sleep()
            cluster = ServedSide(server, MODEL)
            turns = Turns((cluster, engine), arguments.seed, arguments.quiet_wait)
            turns.take((SINGLE, BATCH), arguments.rounds)
        finally:
            if server is not None:
                server.stop()
            if engine is not None:
                engine.stop()
            processes.end_all(1.0)
    return report(turns, cluster, engine, idle_cores).finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
