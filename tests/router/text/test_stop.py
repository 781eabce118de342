"""Stop strings: what is shown depends on the text alone, and no part of a stop string is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.text.stop import StopMatcher, StopStrings

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=4)


def reference(text: str, stops: list[str], include: bool) -> str:
    """The text up to the first end of any stop string; the longest of those that end there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[:end] if include else text[: end - max(map(len, found))]
    return text


def held_back(text: str, stops: list[str]) -> int:
    """The longest end of the text that is a proper beginning of a stop string."""
    lengths = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


def show(pieces: list[str], stops: list[str], include: bool = False) -> str:
    matcher = StopMatcher(StopStrings(stops), include=include)
    return "".join([matcher.feed(piece) for piece in pieces]) + matcher.flush()


@given(st.lists(st.text("ab\nc", max_size=6), max_size=8), STOPS, st.booleans())
def test_any_split_of_a_text_shows_what_the_whole_text_shows(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    assert show(pieces, stops, include) == reference("".join(pieces), stops, include)


@given(st.lists(st.text("ab\nc", max_size=6), max_size=8), STOPS)
def test_exactly_the_longest_possible_beginning_is_held_back(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    fed = shown = ""
    for piece in pieces:
        fed += piece
        shown += matcher.feed(piece)
        if matcher.is_matched:
            break
        assert shown == fed[: len(fed) - held_back(fed, stops)]


@pytest.mark.parametrize(
    ("pieces", "stops", "shown"),
    [
        (["one\n", "\nUser: hi"], ["\nUser:"], "one\n"),
        (["a", "a", "a", "b"], ["aab"], "a"),
        (["abcd"], ["abcd", "bc"], "a"),
        (["xabc"], ["bc", "abc"], "x"),
        (["no sto", "p"], ["stop!"], "no stop"),
        (["日本", "語です"], ["本語"], "日"),
        (["stop"], ["stop"], ""),
    ],
)
def test_examples(pieces: list[str], stops: list[str], shown: str) -> None:
    assert show(pieces, stops) == shown


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(StopStrings(["."]))
    assert matcher.feed("One. Two.") == "One"
    assert matcher.is_matched
    assert matcher.feed("Three") == ""
    assert matcher.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
