"""Load on one endpoint in a closed loop, and what came of it. A fresh client per measurement."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from deploy.bench.arrivals import ClosedLoop
from deploy.bench.client import Client, Target
from deploy.bench.record import Record
from deploy.bench.request import BenchRequest
from deploy.bench.run import Outcome, Run


class LoadFailed(Exception):
    """A request was not answered, or not with as many tokens as were asked for."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one measurement: throughput over all of it, latencies as medians over its requests."""

    tokens_per_s: float
    ttft_ms: float
    itl_ms: float

    @classmethod
    def of(cls, wall_s: float, num_tokens: int, ttfts_s: Sequence[float], itls_s: Sequence[float]) -> Figures:
        return cls(num_tokens / wall_s, statistics.median(ttfts_s) * 1e3, statistics.median(itls_s) * 1e3)


async def apply_load(url: str, model: str, requests: Sequence[BenchRequest], num_streams: int) -> Figures:
    """Send all requests through `num_streams` streams. Raises LoadFailed."""
    async with Client(Target(url, model, "completions")) as client:
        outcome = await Run(client, ClosedLoop(num_streams), None, None).measure(requests)
    return _figures(outcome, requests)


def _figures(outcome: Outcome, requests: Sequence[BenchRequest]) -> Figures:
    records = outcome.records
    for record in records:
        if record.error is not None or record.ttft_s is None:
            raise LoadFailed(f"a request was not answered: {record.error or 'it has no tokens'}")
    wanted = sum(request.max_tokens for request in requests)
    got = sum(record.num_output_tokens for record in records)
    if got != wanted:
        raise LoadFailed(f"{wanted} tokens were asked for, but {got} came; does the server heed ignore_eos?")
    ttfts = [record.ttft_s for record in records if record.ttft_s is not None]
    return Figures.of(outcome.wall_s, got, ttfts, [_itl_s(record) for record in records])


def _itl_s(record: Record) -> float:
    return record.mean_itl_s or 0.0
