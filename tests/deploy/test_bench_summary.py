"""A summary counts each answer once, and a failed one in no latency."""

from __future__ import annotations

import io
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from deploy.bench.record import Record
from deploy.bench.run import Outcome
from deploy.bench.summary import percentile, summarise
from deploy.bench.table import show

GOOD = Record(0.0, 1.0, 0.1, (0.02,) * 9, 50, 10, num_cached_tokens=16)
SLOW = Record(0.0, 3.0, 0.9, (0.02,) * 9, 50, 10)
FAILED = Record(0.0, 0.1, None, (), 0, 0, error="HTTP 503: no worker")


def test_sums_and_shares() -> None:
    summary = summarise(Outcome([GOOD, SLOW, FAILED, FAILED], num_given_up=1, wall_s=4.0))
    assert (summary.num_answered, summary.num_failed, summary.num_given_up) == (2, 2, 1)
    assert summary.errors == {"HTTP 503: no worker": 2}
    assert (summary.output_tokens_per_s, summary.total_tokens_per_s) == (5.0, 30.0)
    assert (summary.goodput_per_s, summary.goodput_share) == (0.25, 0.25)
    assert summary.num_cached_tokens == 16
    assert summary.ttft_ms is not None
    assert (summary.ttft_ms.mean, summary.ttft_ms.max) == (500.0, 900.0)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50), st.integers(1, 99))
def test_percentiles_are_those_of_the_standard_library(values: list[float], percent: int) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(sorted(values), percent) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("records", [[], [FAILED], [GOOD]])
def test_every_outcome_can_be_shown(records: list[Record]) -> None:
    out = io.StringIO()
    show(summarise(Outcome(records, num_given_up=2, wall_s=1.0)), "a run", Console(file=out, width=100))
    shown = out.getvalue()
    assert f"{sum(record.error is None for record in records)} answered" in shown
    assert "2 given up" in shown
    assert ("HTTP 503" in shown) == (FAILED in records)
