"""What the cluster costs over its own engine: TTFT added for a single stream, throughput kept at 16.

One cluster (one worker, one router) and one bare engine with the same configuration are up at the same time
and measured in turns with the same prompts; whoever is not measured is stopped. The cluster is asked over
HTTP with text, so HTTP, tokenizing, placement, the worker wire and detokenizing are all in its figures.

    python bench/overhead.py [--rounds N] [--json FILE] [--check]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import machine
from bare_engine import BareEngine
from headrace import MODEL, engine_config, spec_of, start_headrace
from load import Figures, apply_load
from prompts import Point
from report import Report, arguments_parser
from servers import Server

from deploy import processes

SOURCE = "builtin:smollm2-135m"
SINGLE = Point("1 stream", 1, num_requests=10, num_words=115, num_output_tokens=32)
BATCH = Point("16 streams", 16, num_requests=32, num_words=115, num_output_tokens=128)
MAX_ADDED_TTFT_MS = 5.0
MIN_THROUGHPUT = 0.95
QUIET_CORES = 0.2


class Overhead:
    def __init__(self, seed: int, quiet_wait_s: float, cluster: Server, engine: BareEngine) -> None:
        self._seed = seed
        self._quiet_wait_s = quiet_wait_s
        self._cluster = cluster
        self._engine = engine
        self.others: list[float] = []  # cores that other processes used meanwhile
        self.figures: dict[tuple[str, str], list[Figures]] = {}

    def round(self, round_: int) -> None:
        """Both sides at both points; who comes first alternates."""
        for point in (SINGLE, BATCH):
            for side in ("engine", "cluster") if round_ % 2 else ("cluster", "engine"):
                machine.wait_quiet(QUIET_CORES, self._quiet_wait_s)
                with machine.Meter() as meter:
                    figures = (
                        self._on_cluster(point, round_)
                        if side == "cluster"
                        else self._on_engine(point, round_)
                    )
                self.others.append(meter.others)
                self.figures.setdefault((side, point.name), []).append(figures)
                print(
                    f"round {round_}, {point.name}, {side}: {figures}, others {meter.others:.2f}",
                    file=sys.stderr,
                )

    def forget(self) -> None:
        """What was measured until now was warm-up."""
        self.others.clear()
        self.figures.clear()

    def values(self, side: str, point: Point, figure: str) -> list[float]:
        return [getattr(figures, figure) for figures in self.figures[side, point.name]]

    def _on_cluster(self, point: Point, round_: int) -> Figures:
        self._cluster.wake()
        try:
            requests = point.requests(self._seed, round_)
            return asyncio.run(apply_load(self._cluster.url, MODEL, requests, point.num_streams))
        finally:
            self._cluster.sleep()

    def _on_engine(self, point: Point, round_: int) -> Figures:
        return self._engine.measure(point.requests(self._seed, round_), point.num_streams)


def report(overhead: Overhead) -> Report:
    result = Report("Headrace's cluster against its bare engine", ("cluster", "engine"))

    def compare(point: Point, figure: str, name: str, unit: str) -> tuple[float, float]:
        comparison = result.compare(
            f"{point.name}: {name}",
            unit,
            overhead.values("cluster", point, figure),
            overhead.values("engine", point, figure),
        )
        return comparison.ratio, comparison.difference

    _, added_ms = compare(SINGLE, "ttft_ms", "TTFT p50", "ms")
    compare(SINGLE, "itl_ms", "ITL p50", "ms")
    kept, _ = compare(BATCH, "tokens_per_s", "throughput", "tokens/s")
    compare(BATCH, "ttft_ms", "TTFT p50", "ms")
    result.bar("added TTFT p50, 1 stream", added_ms, "≤", MAX_ADDED_TTFT_MS, " ms")
    result.bar("throughput of the cluster to the engine's, 16 streams", kept, "≥", MIN_THROUGHPUT)
    result.fact("cores used by others, most in one measurement", round(max(overhead.others), 2))
    return result


def main() -> int:
    arguments = arguments_parser(__doc__ or "", rounds=5).parse_args()
    processes.adopt_orphans()
    engine: BareEngine | None = None
    cluster: Server | None = None
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        try:
            engine = BareEngine(SOURCE, engine_config(spec_of(SOURCE)))
            cluster = start_headrace(SOURCE, Path(folder))
            cluster.sleep()
            overhead = Overhead(arguments.seed, arguments.quiet_wait, cluster, engine)
            overhead.round(0)
            overhead.forget()
            for round_ in range(1, arguments.rounds + 1):
                overhead.round(round_)
        finally:
            if cluster is not None:
                cluster.stop()
            if engine is not None:
                engine.stop()
            processes.end_all(1.0)
    return report(overhead).finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
