"""Sides measured in turns: the same prompts to all, only one at work, who comes first alternates.

A measurement that others disturbed is taken again, a few times at most, and the least disturbed one counts.
The first round is warm-up and counts nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Protocol

import machine
from load import Figures, apply_load
from prompts import Point
from servers import Server

from deploy.bench.request import BenchRequest

QUIET_CORES = 0.2  # what may run beside a measurement when it begins
DISTURBED_CORES = 0.1  # what others may use while it lasts
MAX_TRIES = 3


class Side(Protocol):
    @property
    def name(self) -> str: ...

    def measure(self, requests: Sequence[BenchRequest], num_streams: int) -> Figures: ...


class ServedSide:
    """A server that is awake only while it is measured."""

    def __init__(self, server: Server, model: str) -> None:
        self._server = server
        self._model = model

    @property
    def name(self) -> str:
        return self._server.name

    def measure(self, requests: Sequence[BenchRequest], num_streams: int) -> Figures:
        self._server.wake()
        try:
            first = [BenchRequest(("Good morning to you.",), 2)]  # what slept answers its first request late
            asyncio.run(apply_load(self._server.url, self._model, first, 1))
            return asyncio.run(apply_load(self._server.url, self._model, requests, num_streams))
        finally:
            self._server.sleep()


class Turns:
    """The figures of every round by side and point."""

    def __init__(self, sides: Sequence[Side], seed: int, quiet_wait_s: float) -> None:
        self._sides = sides
        self._seed = seed
        self._quiet_wait_s = quiet_wait_s
        self._others: list[float] = []
        self._figures: dict[tuple[str, str], list[Figures]] = {}

    def take(self, points: Sequence[Point], num_rounds: int) -> None:
        """One round to warm up, then `num_rounds` that count."""
        for round_ in range(num_rounds + 1):
            for point in points:
                for side in self._sides if round_ % 2 else reversed(self._sides):
                    num_tries = MAX_TRIES if round_ > 0 else 1
                    figures, others = self._least_disturbed(side, point, round_, num_tries)
                    if round_ > 0:
                        self._others.append(others)
                        self._figures.setdefault((side.name, point.name), []).append(figures)

    @property
    def most_disturbed(self) -> float:
        """The cores that others used, in the measurement in which they used most."""
        return max(self._others)

    def values(self, side: Side, point: Point, figure: str) -> list[float]:
        """A figure of `Figures`, one value per round."""
        return [getattr(figures, figure) for figures in self.figures(side, point)]

    def figures(self, side: Side, point: Point) -> list[Figures]:
        """One per round."""
        return self._figures[side.name, point.name]

    def _least_disturbed(
        self, side: Side, point: Point, round_: int, num_tries: int
    ) -> tuple[Figures, float]:
        best: tuple[Figures, float] | None = None
        for try_ in range(num_tries):
            machine.wait_quiet(QUIET_CORES, self._quiet_wait_s)
            requests = point.requests(f"{self._seed}-{round_}-{try_}")
            with machine.Meter() as meter:
                figures = side.measure(requests, point.num_streams)
            print(
                f"round {round_}, {point.name}, {side.name}: {figures.tokens_per_s:.1f} tokens/s, "
                f"TTFT {figures.ttft_ms:.1f} ms, ITL {figures.itl_ms:.1f} ms, others {meter.others:.2f}",
                file=sys.stderr,
            )
            if best is None or meter.others < best[1]:
                best = figures, meter.others
            if best[1] < DISTURBED_CORES:
                break
        assert best is not None
        return best
