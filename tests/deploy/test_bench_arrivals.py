"""Requests are due when the arrivals say: at a rate, or at a trace's own times."""

from __future__ import annotations

import itertools
import statistics

import pytest

from deploy.bench.arrivals import OpenLoop, TraceTimes
from deploy.bench.request import BenchRequest

ENDLESS = itertools.repeat(BenchRequest(("hello",), 1))


def test_a_constant_rate_has_equal_gaps() -> None:
    times = [due_s for due_s, _ in itertools.islice(OpenLoop(4.0, "constant", 0).times(ENDLESS), 5)]
    assert times == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals_have_the_rate_as_mean_and_spread_like_an_exponential() -> None:
    loop = OpenLoop(5.0, "poisson", seed=3)
    times = [due_s for due_s, _ in itertools.islice(loop.times(ENDLESS), 4001)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.1)
    assert times == [due_s for due_s, _ in itertools.islice(loop.times(ENDLESS), 4001)]
    assert (
        times[1:]
        != [due_s for due_s, _ in itertools.islice(OpenLoop(5.0, "poisson", 4).times(ENDLESS), 4001)][1:]
    )


def test_a_finite_workload_ends_the_arrivals() -> None:
    requests = [BenchRequest(("a",), 1), BenchRequest(("b",), 1)]
    assert [request for _, request in OpenLoop(1.0, "poisson", 0).times(requests)] == requests


def test_a_trace_is_followed_from_its_first_request_and_faster_when_asked() -> None:
    requests = [BenchRequest(("a",), 1, at_s=at_s) for at_s in (10.0, 11.0, 15.0)]
    assert [due_s for due_s, _ in TraceTimes(2.0).times(requests)] == [0.0, 0.5, 2.5]
