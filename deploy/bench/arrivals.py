"""When requests are sent: as many at a time as there are streams, or at times that do not wait for answers.

Closed loop: each stream sends its next request when the one before is answered; load never passes what the
server can do. Open loop: requests come at their times whatever happens, as those of strangers do.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from deploy.bench.request import BenchRequest

Spacing = Literal["poisson", "constant"]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    num_streams: int

    @property
    def description(self) -> str:
        return f"closed loop, {self.num_streams} stream{'s' if self.num_streams > 1 else ''}"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """`rate` requests per second; the first is sent at once."""

    rate: float
    spacing: Spacing
    seed: int

    @property
    def description(self) -> str:
        return f"open loop, {self.rate:g} requests/s, {self.spacing}"

    def times(self, requests: Iterable[BenchRequest]) -> Iterator[tuple[float, BenchRequest]]:
        """Each request with the second at which it is due."""
        rng = random.Random(f"{self.seed}-arrivals")
        gaps = (
            1.0 / self.rate if self.spacing == "constant" else rng.expovariate(self.rate)
            for _ in itertools.count()
        )
        return zip(itertools.accumulate(gaps, initial=0.0), requests, strict=False)


@dataclass(frozen=True, slots=True)
class TraceTimes:
    """The trace's own times, `speedup` times as fast, from its first request on."""

    speedup: float

    @property
    def description(self) -> str:
        return "open loop, the trace's times" + (
            f" {self.speedup:g} times as fast" if self.speedup != 1 else ""
        )

    def times(self, requests: Iterable[BenchRequest]) -> Iterator[tuple[float, BenchRequest]]:
        """Each request with the second at which it is due."""
        start_s: float | None = None
        for request in requests:
            assert request.at_s is not None, "a trace with times has one for every request"
            start_s = request.at_s if start_s is None else start_s
            yield (request.at_s - start_s) / self.speedup, request


Arrivals = ClosedLoop | OpenLoop | TraceTimes
