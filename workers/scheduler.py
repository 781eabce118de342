"""Which tokens the next step computes, for whom, and in which blocks.

There is no prefill phase and no decode phase: every sequence advances toward the tokens it knows.
Sequences that decode go first, one token each; what the step budget leaves goes to prompts, those that
have begun before those that wait. New ones are admitted first come, first served, and only if the
largest KV demand to be expected fits. When blocks run out in spite of that, the sequence admitted last
gives its blocks back and computes its tokens again later.

Pure and synchronous: the engine calls `schedule`, computes, and calls `complete`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvcache.hashing import BlockHasher
from kvcache.pool import BlockPool
from workers.admission import Demand, OutputEstimator, peak_tokens
from workers.budget import StepBudget
from workers.errors import ContextTooLong
from workers.sequence import Sequence, State
from workers.speculation import longest_draft


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `start` .. `start + num_tokens` of a sequence; `samples` if the next token follows from them.

    A decode may have a `draft`: tokens that are computed after the newest one, as if they were known."""

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    is_decode: bool
    draft: list[int] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        last = self.start + self.num_tokens - len(self.draft)
        return self.sequence.token_ids[self.start : last] + self.draft

    @property
    def context_tokens(self) -> int:
        """Tokens that the last of its tokens attends to."""
        return self.start + self.num_tokens


@dataclass(slots=True)
class Schedule:
    """One step. Every chunk's blocks are allocated."""

    chunks: list[ScheduledChunk] = field(default_factory=list)
    num_cached_tokens: int = 0  # found in the prefix cache by the sequences admitted now


class Scheduler:
    """Owns the sequences and, through their block tables, the blocks."""

    def __init__(
        self,
        pool: BlockPool,
        hasher: BlockHasher,
        budget: StepBudget,
        *,
        block_tokens: int,
        max_sequences: int,
        max_context_tokens: int,
    ) -> None:
        self._pool = pool
        self._hasher = hasher
        self._budget = budget
        self._estimator = OutputEstimator()
        self._block_tokens = block_tokens
        self._max_sequences = max_sequences
        self._max_context_tokens = min(max_context_tokens, pool.num_blocks * block_tokens)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # in order of admission
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens that must be computed before their sequences can decode."""
        return sum(sequence.num_tokens for sequence in self._waiting) + sum(
            sequence.num_uncomputed_tokens for sequence in self._running if not sequence.is_decoding
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ContextTooLong if it could never run to its end."""
        prompt, output = sequence.num_prompt_tokens, sequence.params.max_tokens
        if prompt + output > self._max_context_tokens:
            raise ContextTooLong(
                f"this worker holds {self._max_context_tokens} tokens of one request, but {prompt + output} "
                f"were asked for: {prompt} in the prompt and {output} to generate; "
                "shorten the prompt or lower max_tokens"
            )
        self._waiting.append(sequence)

    def finish(self, sequence: Sequence, reason: str) -> None:
        """The sequence ends here, whatever it was doing; its blocks are released. Twice is harmless."""
        if not sequence.is_live:
            return
        if sequence.state is State.RUNNING:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._release(sequence)
        sequence.move("finish")
        if reason in ("stop", "length"):
            self._estimator.observe(sequence.num_output_tokens)

    def schedule(self, now: float) -> Schedule:
        """Choose the next step. It is empty only if nothing can run, that is, if nothing is there."""
        schedule = Schedule()
        num_preemptions = self.num_preemptions
        self._schedule_decodes(schedule)
        context_tokens = sum(chunk.context_tokens for chunk in schedule.chunks)
        num_decoded = sum(chunk.num_tokens for chunk in schedule.chunks)
        budget = self._budget.prefill_tokens(num_decoded, context_tokens)
        budget -= self._schedule_prompts(schedule, budget)
        if budget > 0 and self.num_preemptions == num_preemptions:  # what was preempted now would come back
            self._admit(schedule, budget, now)
        return schedule

    def complete(self, schedule: Schedule, sampled: Mapping[Sequence, list[int]]) -> None:
        """The step is computed: its full blocks can be reused from now on, its new tokens are known.

        Of a draft only what was sampled as well is kept. Sequences that were finished since are left out."""
        for chunk in schedule.chunks:
            sequence = chunk.sequence
            if not sequence.is_live:
                continue
            if chunk.samples:
                sequence.token_ids += sampled[sequence]
            first = sequence.num_computed_tokens // self._block_tokens
            sequence.num_computed_tokens += len(sampled[sequence]) if chunk.draft else chunk.num_tokens
            last = sequence.num_computed_tokens // self._block_tokens
            if last > first:
                self._hash(sequence, last)
                for index in range(first, last):
                    parent = sequence.hashes[index - 1] if index else self._hasher.root(sequence.salt)
                    self._pool.publish(sequence.block_table[index], sequence.hashes[index], parent)

    def _schedule_decodes(self, schedule: Schedule) -> None:
        for sequence in list(self._running):
            # One that was preempted for the sake of an earlier one is not running any more.
            if sequence.state is State.RUNNING and sequence.is_decoding and self._make_room(sequence, 1):
                schedule.chunks.append(self._chunk(sequence, 1))
        longest = longest_draft(len(schedule.chunks))
        schedule.chunks = [self._with_draft(chunk, longest) for chunk in schedule.chunks]

    def _with_draft(self, chunk: ScheduledChunk, longest: int) -> ScheduledChunk:
        """The decode with as long a draft as it may have; it gets more blocks only if there are plenty."""
        sequence = chunk.sequence
        if sequence.drafter is None:
            return chunk
        is_plenty = self._pool.num_available > 2 * len(self._running)
        owned = len(sequence.block_table) * self._block_tokens - sequence.num_tokens
        limit = min(
            longest,
            sequence.params.max_tokens - sequence.num_output_tokens - 1,
            self._max_context_tokens - sequence.num_tokens - 1,
            self._room(sequence) - 1 if is_plenty else owned,
        )
        draft = sequence.drafter.propose(sequence.token_ids, limit)
        if not draft:
            return chunk
        self._grow(sequence, 1 + len(draft))
        return replace(chunk, num_tokens=1 + len(draft), draft=draft)

    def _schedule_prompts(self, schedule: Schedule, budget: int) -> int:
        """Go on with prompts that have begun; returns the tokens spent."""
        spent = 0
        for sequence in list(self._running):
            if spent == budget:
                break
            if sequence.state is not State.RUNNING or sequence.is_decoding:
                continue
            count = min(sequence.num_uncomputed_tokens, budget - spent)
            if not schedule.chunks:
                self._make_room(sequence, count)  # nothing else can go on: here preemption may be needed
            count = min(count, self._room(sequence))
            if sequence.state is State.RUNNING and count > 0:
                self._grow(sequence, count)
                schedule.chunks.append(self._chunk(sequence, count))
                spent += count
        return spent

    def _admit(self, schedule: Schedule, budget: int, now: float) -> None:
        """Start waiting sequences in order, while the budget lasts and the peak demand fits."""
        for sequence in list(self._waiting):
            if budget <= 0 or len(self._running) >= self._max_sequences:
                return
            if sequence.is_held_back:
                continue
            hits = self._match(sequence)
            if not self._fits(sequence, hits):
                return
            self._waiting.remove(sequence)
            self._start(sequence, hits, now)
            schedule.num_cached_tokens += sequence.num_computed_tokens
            count = min(sequence.num_uncomputed_tokens, budget, self._room(sequence))
            if count > 0:
                self._grow(sequence, count)
                schedule.chunks.append(self._chunk(sequence, count))
                budget -= count

    def _start(self, sequence: Sequence, hits: list[int], now: float) -> None:
        self._pool.acquire(hits)
        sequence.block_table = hits
        sequence.num_hit_blocks = len(hits)
        sequence.num_computed_tokens = len(hits) * self._block_tokens
        if sequence.admitted_s is None:
            sequence.admitted_s = now
            sequence.num_cached_tokens = sequence.num_computed_tokens
        sequence.move("admit")
        self._running.append(sequence)

    def _match(self, sequence: Sequence) -> list[int]:
        """Reusable blocks; at least one token is left to compute, for the next one is sampled from it."""
        if not sequence.can_read_cache:
            return []
        count = (sequence.num_tokens - 1) // self._block_tokens
        self._hash(sequence, count)
        return self._pool.match(sequence.hashes[:count])

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether the peak demand stays within the pool. A sequence alone always fits: `add` saw to it."""
        if not self._running:
            return True
        num_owned = sum(len(other.block_table) - other.num_hit_blocks for other in self._running)
        num_shared = self._pool.num_used - num_owned + self._pool.num_unused(hits)
        demands = [self._demand(other, other.num_hit_blocks) for other in self._running]
        demands.append(self._demand(sequence, len(hits)))
        peak = num_shared * self._block_tokens + peak_tokens(demands)
        return peak <= self._pool.num_blocks * self._block_tokens

    def _demand(self, sequence: Sequence, num_hit_blocks: int) -> Demand:
        """What it will hold once its known tokens are computed, but for what it found in the cache."""
        held = (self._blocks_for(sequence.num_tokens) - num_hit_blocks) * self._block_tokens
        return Demand(held, self._estimator.growth(sequence.num_output_tokens, sequence.params.max_tokens))

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Allocate blocks for `count` more tokens, preempting from the last admitted sequence on, at worst
        `sequence` itself; then False."""
        while self._room(sequence) < count:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self._grow(sequence, count)
        return True

    def _room(self, sequence: Sequence) -> int:
        """Tokens that the sequence can take on with the blocks it has and those available."""
        capacity = (len(sequence.block_table) + self._pool.num_available) * self._block_tokens
        return capacity - sequence.num_computed_tokens

    def _grow(self, sequence: Sequence, count: int) -> None:
        missing = self._blocks_for(sequence.num_computed_tokens + count) - len(sequence.block_table)
        if missing > 0:
            sequence.block_table += self._pool.allocate(missing)

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        sequence.move("preempt")
        self._waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self._pool.release(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed_tokens = 0

    def _hash(self, sequence: Sequence, count: int) -> None:
        """Make sure that the first `count` blocks of the sequence have hashes."""
        size, hashes = self._block_tokens, sequence.hashes
        parent = hashes[-1] if hashes else self._hasher.root(sequence.salt)
        for index in range(len(hashes), count):
            parent = self._hasher.chain(parent, sequence.token_ids[index * size : (index + 1) * size])
            hashes.append(parent)

    def _chunk(self, sequence: Sequence, count: int) -> ScheduledChunk:
        start = sequence.num_computed_tokens
        samples = start + count == sequence.num_tokens
        return ScheduledChunk(sequence, start, count, samples, sequence.is_decoding)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)
