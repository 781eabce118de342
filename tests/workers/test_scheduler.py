"""The scheduler under random arrivals, cancels and steps: nothing is lost, nothing starves, blocks add up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcache.hashing import BlockHasher
from kvcache.pool import BlockPool
from workers.budget import StepBudget
from workers.errors import ContextTooLong
from workers.sampling.params import SamplingParams
from workers.scheduler import Schedule, ScheduledChunk, Scheduler
from workers.sequence import InvalidTransition, Sequence, State
from workers.speculation import Drafter

BLOCK = 4
NUM_BLOCKS = 14
MAX_SEQUENCES = 4
MAX_STEP = 24
NO_EOS: tuple[int, ...] = ()


class Bench:
    """A scheduler, its pool, and an engine reduced to arithmetic: the next token is a function of those
    before it, so that a sequence must produce the same tokens however it was scheduled."""

    def __init__(self, num_blocks: int = NUM_BLOCKS, max_sequences: int = MAX_SEQUENCES) -> None:
        self.pool = BlockPool(num_blocks)
        self.scheduler = Scheduler(
            self.pool,
            BlockHasher(b"key"),
            StepBudget(0.05, BLOCK, MAX_STEP),
            block_tokens=BLOCK,
            max_sequences=max_sequences,
            max_context_tokens=1000,
        )
        self.live: list[Sequence] = []
        self.ids = itertools.count()
        self.num_accepted = 0  # drafted tokens

    def add(self, prompt: list[int], max_tokens: int, n: int = 1, longest_draft: int = 0) -> list[Sequence]:
        request_id, leader = str(next(self.ids)), None
        added: list[Sequence] = []
        for index in range(n):
            params = SamplingParams(max_tokens=max_tokens, n=n)
            drafter = Drafter(longest_draft) if longest_draft else None
            sequence = Sequence(request_id, index, prompt, params, leader=leader, drafter=drafter)
            self.scheduler.add(sequence)
            leader = leader or sequence
            added.append(sequence)
        self.live += added
        return added

    def step(self) -> Schedule:
        schedule = self.scheduler.schedule(0.0)
        self.check(schedule)
        sampled = {chunk.sequence: draw(chunk) for chunk in schedule.chunks if chunk.samples}
        is_last = {
            sequence: sequence.finish_reason_for(tokens[-1], len(tokens) - 1, NO_EOS, 1000) is not None
            for sequence, tokens in sampled.items()
        }
        self.num_accepted += sum(len(tokens) - 1 for tokens in sampled.values())
        self.scheduler.complete(schedule, sampled)
        for sequence in sampled:
            if is_last[sequence]:
                self.scheduler.finish(sequence, "length")
                self.live.remove(sequence)
                assert_expected(sequence)
        return schedule

    def check(self, schedule: Schedule) -> None:
        assert len({chunk.sequence for chunk in schedule.chunks}) == len(schedule.chunks)
        prompt_tokens = sum(chunk.num_tokens for chunk in schedule.chunks if not chunk.is_decode)
        assert prompt_tokens <= MAX_STEP
        for chunk in schedule.chunks:
            sequence = chunk.sequence
            assert chunk.num_tokens >= 1
            assert chunk.start == sequence.num_computed_tokens
            assert len(sequence.block_table) * BLOCK >= chunk.start + chunk.num_tokens
            assert chunk.samples == (chunk.start + chunk.num_tokens == sequence.num_tokens + len(chunk.draft))
            assert (
                len(chunk.draft) < sequence.params.max_tokens - sequence.num_output_tokens or not chunk.draft
            )

    def run(self, limit: int = 3000) -> None:
        for _ in range(limit):
            if not self.scheduler.has_work:
                return
            assert self.step().chunks, "there is work, but nothing was scheduled"
        raise AssertionError(f"still at work after {limit} steps")


def next_token(token_ids: list[int]) -> int:
    return (3 * token_ids[-1] + len(token_ids) // 24) % 7


def draw(chunk: ScheduledChunk) -> list[int]:
    """The next token, and those after it as long as the draft foresaw them."""
    tokens: list[int] = []
    for place in range(1 + len(chunk.draft)):
        tokens.append(next_token(chunk.sequence.token_ids + tokens))
        if place < len(chunk.draft) and tokens[-1] != chunk.draft[place]:
            break
    if chunk.draft and chunk.sequence.drafter is not None:
        chunk.sequence.drafter.observe(len(chunk.draft), len(tokens) - 1)
    return tokens


def assert_expected(sequence: Sequence) -> None:
    known = sequence.token_ids[: sequence.num_prompt_tokens]
    while len(known) < sequence.num_tokens:
        known.append(next_token(known))
    assert sequence.token_ids == known


prompts = st.builds(
    lambda branch, length, tail: [branch] * length + tail,
    st.integers(0, 2),
    st.integers(0, 20),
    st.lists(st.integers(0, 6), min_size=1, max_size=5),
)


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()

    @rule(
        prompt=prompts,
        max_tokens=st.integers(1, 24),
        n=st.integers(1, 3),
        longest_draft=st.sampled_from([0, 6]),
    )
    def arrive(self, prompt: list[int], max_tokens: int, n: int, longest_draft: int) -> None:
        self.bench.add(prompt, max_tokens, n, longest_draft)

    @precondition(lambda self: self.bench.scheduler.has_work)
    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.bench.scheduler.has_work:
                assert self.bench.step().chunks

    @precondition(lambda self: self.bench.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.bench.live))
        self.bench.scheduler.finish(sequence, "cancelled")
        self.bench.scheduler.finish(sequence, "cancelled")
        self.bench.live.remove(sequence)

    @invariant()
    def blocks_add_up_and_belong_to_running_sequences(self) -> None:
        pool, scheduler = self.bench.pool, self.bench.scheduler
        pool.validate()
        tables = [set(sequence.block_table) for sequence in self.bench.live]
        assert len(set().union(*tables)) == pool.num_used
        assert scheduler.num_running <= MAX_SEQUENCES
        assert scheduler.num_running + scheduler.num_waiting == len(self.bench.live)

    def teardown(self) -> None:
        self.bench.run()
        assert self.bench.pool.num_used == 0
        assert self.bench.live == []


SchedulerMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase


def test_decoding_sequences_go_first_and_prompts_fill_the_rest() -> None:
    bench = Bench(num_blocks=60)
    bench.add([1] * 8, 50)
    bench.step()
    bench.add([2] * 60, 4)
    decode, prompt = bench.step().chunks
    assert (decode.is_decode, decode.num_tokens) == (True, 1)
    assert not prompt.is_decode
    assert prompt.num_tokens <= MAX_STEP


def test_a_full_prefix_hit_still_computes_the_last_token() -> None:
    bench = Bench(num_blocks=60)
    bench.add([3] * 16, 1)
    bench.run()
    (again,) = bench.add([3] * 16, 1)
    (chunk,) = bench.step().chunks
    assert (chunk.start, chunk.num_tokens) == (12, 4)
    assert again.num_cached_tokens == 12


def test_siblings_wait_for_the_leader_and_then_share_its_prompt() -> None:
    bench = Bench(num_blocks=60)
    leader, second, third = bench.add([4] * 20, 5, n=3)
    assert [chunk.sequence for chunk in bench.step().chunks] == [leader]
    bench.step()
    assert second.block_table[:4] == third.block_table[:4] == leader.block_table[:4]


def test_the_last_admitted_sequence_is_preempted_and_finishes_later() -> None:
    bench = Bench()
    for _ in range(20):  # short outputs teach the estimator to admit more than will fit
        bench.add([5], 1)
        bench.run()
    first, last = bench.add([1] * 20, 24)[0], bench.add([2] * 20, 24)[0]
    while not bench.scheduler.num_preemptions:
        bench.step()
    assert (first.state, last.state) == (State.RUNNING, State.WAITING)
    bench.run()


def test_admission_holds_back_what_would_not_fit_at_its_peak() -> None:
    bench = Bench()
    bench.add([1] * 20, 24)
    bench.add([2] * 20, 24)
    while bench.scheduler.has_work:
        bench.step()
    assert bench.scheduler.num_preemptions == 0


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    bench = Bench()
    with pytest.raises(ContextTooLong, match=r"holds 52 tokens .* 61 were asked for: 60 in the prompt and 1"):
        bench.add([1] * 60, 1)
    assert not bench.scheduler.has_work


def test_a_move_outside_the_table_tells_the_story() -> None:
    sequence = Sequence("r", 0, [1], SamplingParams(max_tokens=1))
    sequence.move("admit")
    sequence.move("finish")
    with pytest.raises(InvalidTransition, match=r"cannot admit.*admit at 0, finish at 0"):
        sequence.move("admit")


def test_drafts_are_accepted_and_change_nothing() -> None:
    bench = Bench(num_blocks=200)
    bench.add([1, 2, 3], 120, longest_draft=6)
    bench.run()
    assert bench.num_accepted > 30  # what follows three tokens depends on them, and rarely on the length
