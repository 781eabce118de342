"""Placement takes the least loaded worker, and the ledger's sum is always true."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from router.placement import Candidate, LeastLoaded, Ticket, WorkerLoad


def candidate(name: str, sequences: int, tokens: int = 0, size: int = 64) -> Candidate:
    return Candidate(name, sequences, tokens, size)


def test_the_emptiest_batch_for_its_size_wins_then_the_fewest_waiting_tokens() -> None:
    policy = LeastLoaded(Random(0))
    assert policy.choose([candidate("a", 8, size=64), candidate("b", 5, size=16)]) == 0
    assert policy.choose([candidate("a", 3, 900), candidate("b", 3, 100)]) == 1


def test_equals_share_at_random() -> None:
    policy = LeastLoaded(Random(0))
    counts = Counter(policy.choose([candidate(name, 2) for name in "abc"]) for _ in range(900))
    assert all(220 < counts[index] < 380 for index in range(3))


@given(
    st.lists(
        st.tuples(st.sampled_from(["dispatch", "start", "release", "observe"]), st.integers(0, 5)),
        max_size=60,
    )
)
def test_the_ledger_is_the_sum_of_what_is_open_however_tickets_end(events: list[tuple[str, int]]) -> None:
    load = WorkerLoad()
    tickets: list[tuple[Ticket, int, int]] = []
    waiting: dict[int, int] = {}
    open_: dict[int, int] = {}
    for event, number in events:
        if event == "dispatch":
            waiting[len(tickets)], open_[len(tickets)] = 10 * number, number + 1
            tickets.append((load.dispatch(number + 1, 10 * number), number + 1, 10 * number))
        elif event == "observe":
            load.observe(number, 10 * number)
        elif tickets:
            place = number % len(tickets)
            if event == "start":
                tickets[place][0].start()
            else:
                tickets[place][0].release()
                open_[place] = 0
            waiting[place] = 0
        assert load.num_own_sequences == sum(open_.values())
        assert load.num_own_tokens == sum(waiting.values())
        assert load.num_sequences >= load.num_own_sequences


def test_a_report_does_not_count_ones_own_requests_twice() -> None:
    load = WorkerLoad()
    load.dispatch(2, 100)
    load.observe(5, 150)
    assert (load.num_sequences, load.num_waiting_tokens) == (5, 150)
    load.dispatch(1, 10)
    assert (load.num_sequences, load.num_waiting_tokens) == (6, 160)
