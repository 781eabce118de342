"""A worker's place moves only as its table says, and comes back later each time it is lost."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.supervisor import (
    FIRST_DELAY_S,
    HEALTHY_S,
    LONGEST_DELAY_S,
    TRANSITIONS,
    InvalidTransition,
    Slot,
    State,
)


def slot() -> Slot:
    return Slot("w", 100, Random(1))


@given(st.lists(st.sampled_from(["start", "ready", "lost", "refuse", "stop"]), max_size=40))
def test_only_moves_of_the_table_are_made_and_epochs_only_grow(events: list[str]) -> None:
    place, now, epoch = slot(), 0.0, 99
    for event in events:
        now += 1.0
        before = place.state
        arguments = [now, "reason"] if event in ("lost", "refuse") else [now]
        if (event, before) in TRANSITIONS:
            getattr(place, event)(*arguments)
            assert place.state is TRANSITIONS[event, before]
        elif event == "stop":
            place.stop(now)
            assert place.state is State.STOPPED
        else:
            with pytest.raises(InvalidTransition, match=f"cannot {event} while {before.value}"):
                getattr(place, event)(*arguments)
            assert place.state is before
        assert place.epoch >= epoch
        assert place.epoch == epoch + (
            event == "start" and place.state is State.STARTING and before is not place.state
        )
        epoch = place.epoch


def test_delays_double_up_to_the_limit() -> None:
    place, now = slot(), 0.0
    delays = []
    for _ in range(12):
        place.start(now)
        delays.append(place.lost(now, "died"))
        now += delays[-1]
    for count, delay in enumerate(delays):
        longest = min(FIRST_DELAY_S * 2**count, LONGEST_DELAY_S)
        assert 0.8 * longest <= delay <= longest
    assert place.num_losses == 12


def test_a_worker_that_was_healthy_for_long_comes_back_soon() -> None:
    place, now = slot(), 0.0
    for _ in range(6):
        place.start(now)
        place.lost(now, "died")
    place.start(now)
    place.ready(now)
    assert place.lost(now + HEALTHY_S, "died") <= FIRST_DELAY_S


def test_a_wrong_move_tells_the_story() -> None:
    place = slot()
    place.start(1.0)
    place.lost(2.0, "it hit a rock")
    with pytest.raises(InvalidTransition, match=r"start at 1\.000 s, lost at 2\.000 s: it hit a rock"):
        place.ready(3.0)
