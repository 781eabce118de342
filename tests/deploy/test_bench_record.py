"""A record says what arrived when, however the bytes were cut, and what went wrong if something did."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.bench.record import Arrivals, Record, error_message


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def piece(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})


USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}})
DONE = b"data: [DONE]\n\n"


def arrivals(*pieces: tuple[float, bytes]) -> Arrivals:
    return Arrivals(started_s=100.0, pieces=list(pieces))


def test_times_are_those_of_text() -> None:
    record = arrivals(
        (100.5, event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})),
        (101.0, event({"choices": [{"index": 0, "delta": {"content": "one"}}]})),
        (101.5, event({"choices": [{"index": 0, "delta": {"content": " two"}}]})),
        (102.5, event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})),
        (102.5, USAGE + DONE),
    ).record(103.0)
    assert record.error is None
    assert record.text == "one two"
    assert (record.ttft_s, record.gaps_s, record.e2e_s) == (1.0, (0.5,), 3.0)
    assert (record.num_input_tokens, record.num_output_tokens) == (7, 3)
    assert record.mean_itl_s == 0.25  # three tokens came in two pieces


@given(st.data())
def test_how_the_stream_is_cut_changes_only_the_times(data: st.DataObject) -> None:
    stream = piece("å") + b": a comment\n\n" + piece("b") + piece("c") + USAGE + DONE
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1))))
    bounds = [0, *cuts, len(stream)]
    parts = [stream[first:last] for first, last in itertools.pairwise(bounds)]
    record = arrivals(*((101.0 + index, part) for index, part in enumerate(parts))).record(900.0)
    assert (record.error, record.text, record.num_output_tokens) == (None, "åbc", 3)
    # A piece of text has arrived when its line is complete, not before.
    ends = [stream.index(json.dumps(text).encode()) for text in ("å", "b", "c")]
    line_ends = [stream.index(b"\n", end) + 1 for end in ends]
    assert record.ttft_s == 1.0 + next(i for i, last in enumerate(bounds[1:]) if last >= line_ends[0])


def test_carriage_returns_are_no_part_of_the_data() -> None:
    stream = (piece("x") + USAGE + DONE).replace(b"\n", b"\r\n")
    assert arrivals((101.0, stream)).record(102.0).error is None


def test_without_usage_pieces_are_counted() -> None:
    record = arrivals((101.0, piece("a") + piece("b") + DONE)).record(102.0)
    assert (record.error, record.num_output_tokens) == (None, 2)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (piece("a"), r"without \[DONE\]"),
        (
            piece("a") + event({"error": {"message": "the worker died", "code": "worker_lost"}}),
            "the worker died",
        ),
        (piece("a") + b"data: {oops\n\n" + DONE, "cannot be read"),
        (b"", r"without \[DONE\]"),
    ],
)
def test_a_stream_that_breaks_is_an_error_that_keeps_what_came(stream: bytes, message: str) -> None:
    record = arrivals((101.0, stream)).record(102.0)
    assert record.error is not None
    assert re.search(message, record.error)
    assert record.text == ("a" if stream else "")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"detail": "not found"}', "{'detail': 'not found'}"),
        (b"<html>Bad gateway</html>", "<html>Bad gateway</html>"),
    ],
)
def test_an_error_body_is_told_in_its_own_words(body: bytes, message: str) -> None:
    assert error_message(body) == message


@pytest.mark.parametrize(
    ("ttft_s", "gap_s", "error", "is_met"),
    [
        (0.2, 0.05, None, True),
        (0.201, 0.05, None, False),
        (0.2, 0.051, None, False),
        (0.1, 0.01, "lost", False),
    ],
)
def test_an_slo_is_met_by_both_latencies_or_not_at_all(
    ttft_s: float, gap_s: float, error: str | None, is_met: bool
) -> None:
    record = Record(0.0, 1.0, ttft_s, (gap_s, gap_s), 5, 3, error=error)
    assert record.meets(0.2, 0.05) == is_met
