"""Options that contradict each other are refused before anything is sent; defaults follow from the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.bench.arrivals import Arrivals, ClosedLoop, OpenLoop, TraceTimes
from deploy.bench.options import DEFAULT_REQUESTS, DEFAULT_STREAMS, BenchOptions
from deploy.bench.words import TextScale
from workers.errors import ConfigError

URL = "http://127.0.0.1:9"
TIMED = "ms,context_tokens,generated_tokens\n0,374,44\n120,396,109\n"
UNTIMED = "num_prefill_tokens,num_decode_tokens\n300,20\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"concurrency": 4, "rate": 2.0}, "--concurrency 4 and --rate 2 exclude each other"),
        ({"trace": Path("t"), "text": "random"}, "--trace and --text exclude each other"),
        ({"speedup": 2.0}, "--speedup is for the times of a --trace"),
        ({"speedup": 2.0, "trace": Path("t"), "rate": 1.0}, "leave out --concurrency and --rate"),
    ],
)
def test_contradictions_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchOptions(URL, **given).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "trace", "arrivals"),
    [
        ({}, None, ClosedLoop(DEFAULT_STREAMS)),
        ({"concurrency": 3}, None, ClosedLoop(3)),
        ({"rate": 2.0, "spacing": "constant", "seed": 5}, None, OpenLoop(2.0, "constant", 5)),
        ({"speedup": 4.0}, TIMED, TraceTimes(4.0)),
        ({}, TIMED, TraceTimes(1.0)),
        ({"rate": 2.0}, TIMED, OpenLoop(2.0, "poisson", 0)),
        ({"concurrency": 3}, TIMED, ClosedLoop(3)),
        ({}, UNTIMED, ClosedLoop(DEFAULT_STREAMS)),
    ],
)
def test_arrivals_follow_from_the_options(
    tmp_path: Path, given: dict[str, object], trace: str | None, arrivals: Arrivals
) -> None:
    if trace is not None:
        (tmp_path / "trace").write_text(trace)
        given = {**given, "trace": tmp_path / "trace"}
    options = BenchOptions(URL, **given)  # type: ignore[arg-type]
    options.check()
    assert options.arrivals(options.source().workload(TextScale())) == arrivals


def test_a_trace_without_times_cannot_be_sped_up(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(UNTIMED)
    options = BenchOptions(URL, trace=tmp_path / "trace", speedup=2.0)
    with pytest.raises(ConfigError, match="has no times to speed up"):
        options.arrivals(options.source().workload(TextScale()))


def test_how_many_requests(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(TIMED)
    (tmp_path / "text").write_text("One.\n\nTwo.\n\nThree.")

    def asked(**given: object) -> int | None:
        options = BenchOptions(URL, **given)  # type: ignore[arg-type]
        return options.num_requests(options.source().workload(TextScale()))

    assert asked() == DEFAULT_REQUESTS
    assert asked(requests=5) == 5
    assert asked(duration_s=3.0) is None  # the duration ends it
    assert asked(trace=tmp_path / "trace") == 2
    assert asked(text=str(tmp_path / "text")) == 3


def test_lengths_above_those_given_are_cut(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(TIMED)
    options = BenchOptions(URL, trace=tmp_path / "trace", input_tokens=380, output_tokens=50)
    requests = list(options.source().workload(TextScale()))
    assert [request.num_input_tokens for request in requests] == [374, 380]
    assert [request.max_tokens for request in requests] == [44, 50]
