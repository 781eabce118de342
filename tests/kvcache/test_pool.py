"""The block pool against a plain model of it, over thousands of random steps."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvcache.events import Cleared, Removed, Stored
from kvcache.pool import BlockPool, NoFreeBlocks

NUM_BLOCKS = 12
ROOT = b"root"


def name(depth: int, branch: int) -> bytes:
    return f"{branch}:{depth}".encode()


class PoolMachine(RuleBasedStateMachine):
    """Tables of blocks come and go; a replica built from events must know what can be matched."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.replica: set[bytes] = set()

    @rule(target=tables, branch=st.integers(0, 3), length=st.integers(1, 6), publishes=st.booleans())
    def open(self, branch: int, length: int, publishes: bool) -> list[int]:
        """What a sequence does: match a prefix, allocate the rest, publish what it computed."""
        pool = self.pool
        hits = pool.match(name(depth, branch) for depth in range(length))
        pool.acquire(hits)
        missing = length - len(hits)
        available = pool.num_available
        if missing > available:
            with pytest.raises(NoFreeBlocks, match=f"{missing} blocks asked for, {available} of"):
                pool.allocate(missing)
            pool.release(hits)
            return []
        table = hits + pool.allocate(missing)
        assert len(set(table)) == length
        assert 0 not in table
        if publishes:
            for depth in range(len(hits), length):
                pool.publish(table[depth], name(depth, branch), name(depth - 1, branch) if depth else ROOT)
            assert pool.match(name(depth, branch) for depth in range(length))[: len(hits)] == hits
        return table

    @rule(table=consumes(tables))
    def close(self, table: list[int]) -> None:
        self.pool.release(table)

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        assert self.pool.num_cached == 0
        assert self.pool.snapshot() == []

    @invariant()
    def free_cached_and_used_add_up(self) -> None:
        self.pool.validate()

    @invariant()
    def events_tell_exactly_what_the_snapshot_holds(self) -> None:
        for event in self.pool.take_events():
            match event:
                case Stored(_, hashes):
                    assert not self.replica & set(hashes)
                    self.replica |= set(hashes)
                case Removed(hashes):
                    assert set(hashes) <= self.replica
                    self.replica -= set(hashes)
                case Cleared():
                    self.replica.clear()
        snapshot = self.pool.snapshot()
        assert {hash_ for _, hash_ in snapshot} == self.replica
        seen: set[bytes] = set()
        for parent, hash_ in snapshot:
            assert parent in seen or parent not in self.replica
            seen.add(hash_)


PoolMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
TestPool = PoolMachine.TestCase


def filled(pool: BlockPool, branch: int, length: int) -> list[int]:
    table = pool.allocate(length)
    for depth, block in enumerate(table):
        pool.publish(block, name(depth, branch), name(depth - 1, branch) if depth else ROOT)
    return table


def test_the_end_of_the_least_recently_used_prefix_is_evicted_first() -> None:
    pool = BlockPool(7)
    old, new = filled(pool, 0, 3), filled(pool, 1, 3)
    pool.release(old)
    pool.release(new)
    pool.allocate(2)
    assert pool.match([name(0, 0), name(1, 0)]) == old[:1]
    assert len(pool.match(name(depth, 1) for depth in range(3))) == 3


def test_using_a_prefix_again_makes_it_the_most_recent() -> None:
    pool = BlockPool(5)
    for branch in (0, 1):
        pool.release(filled(pool, branch, 2))
    again = pool.match([name(0, 0), name(1, 0)])
    pool.acquire(again)
    pool.release(again)
    pool.allocate(2)
    assert pool.match([name(0, 1)]) == []
    assert pool.match([name(0, 0), name(1, 0)]) == again


def test_a_block_in_use_is_never_evicted() -> None:
    pool = BlockPool(4)
    table = filled(pool, 0, 2)
    pool.allocate(1)
    with pytest.raises(NoFreeBlocks):
        pool.allocate(1)
    assert pool.match([name(0, 0), name(1, 0)]) == table


def test_a_second_copy_of_a_block_stays_private_and_becomes_free() -> None:
    pool = BlockPool(5)
    first, second = filled(pool, 0, 1), pool.allocate(1)
    pool.publish(second[0], name(0, 0), ROOT)
    pool.release(first)
    pool.release(second)
    assert (pool.num_free, pool.num_cached, pool.num_used) == (3, 1, 0)


def test_a_pool_without_room_for_work_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        BlockPool(1)
