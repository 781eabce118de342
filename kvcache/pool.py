"""The block pool: who owns which KV block, and which free blocks still hold something reusable.

Every block but block 0 is in exactly one of three states, so their counts always add up:

    free ──allocate──> used ──release──> cached   if it was published under its hash
     ^                  │  <──acquire───   │
     └────release───────┘                  │
     └───────────────evict (oldest first) ─┘

Block 0 is the null block: padding in block tables points at it, and nobody owns it. Cached blocks form an
intrusive list in order of release; a table is released tail first, so that of one prefix the end is
evicted before the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvcache.events import Cleared, KvEvent, Removed, Stored

NULL_BLOCK = 0


class NoFreeBlocks(Exception):
    """Fewer blocks are free or evictable than were asked for."""


@dataclass(slots=True, eq=False)
class _Block:
    id: int
    num_owners: int = 0
    hash: bytes | None = None  # set exactly while the index has this block under it
    parent: bytes = b""
    older: _Block | None = None
    newer: _Block | None = None


class _EvictionList:
    """A doubly linked list through the blocks themselves, oldest first, around a sentinel."""

    def __init__(self) -> None:
        self._end = _Block(-1)
        self._end.older = self._end.newer = self._end
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, block: _Block) -> None:
        last = self._end.older
        assert last is not None
        block.older, block.newer = last, self._end
        last.newer = self._end.older = block
        self._length += 1

    def remove(self, block: _Block) -> None:
        older, newer = block.older, block.newer
        assert older is not None
        assert newer is not None
        older.newer, newer.older = newer, older
        block.older = block.newer = None
        self._length -= 1

    def oldest(self) -> _Block:
        oldest = self._end.newer
        assert oldest is not None
        assert oldest is not self._end
        return oldest


class BlockPool:
    """Hands out the blocks 1 .. num_blocks - 1. Not thread-safe: the engine's thread owns it."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs at least 2 blocks, one of them the null block; got {num_blocks}")
        self._blocks = [_Block(id_) for id_ in range(num_blocks)]
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))  # a stack
        self._cached = _EvictionList()
        self._index: dict[bytes, _Block] = {}
        self._events: list[KvEvent] = []

    @property
    def num_blocks(self) -> int:
        """Blocks that can be owned, the null block not counted."""
        return len(self._blocks) - 1

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free - self.num_cached

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free ones, and cached ones that it may evict."""
        return self.num_free + self.num_cached

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """The reusable blocks for the longest prefix of `hashes`. Changes nothing; `acquire` takes them."""
        found: list[int] = []
        for hash_ in hashes:
            block = self._index.get(hash_)
            if block is None:
                break
            found.append(block.id)
        return found

    def num_unused(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks nobody owns at present."""
        return sum(self._blocks[id_].num_owners == 0 for id_ in block_ids)

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Become one more owner of blocks that `match` found just now."""
        for id_ in block_ids:
            block = self._blocks[id_]
            assert block.hash is not None, f"block {id_} is not reusable"
            if block.num_owners == 0:
                self._cached.remove(block)
            block.num_owners += 1

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with undefined content, all or none. Raises NoFreeBlocks."""
        if count > self.num_available:
            raise NoFreeBlocks(
                f"{count} blocks asked for, {self.num_available} of {self.num_blocks} available"
            )
        if count > len(self._free):
            self._evict(count - len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for id_ in taken:
            self._blocks[id_].num_owners = 1
        return taken

    def publish(self, block_id: int, hash_: bytes, parent: bytes) -> None:
        """The block's content is complete and can be reused under `hash_`, after the block named `parent`.

        If another block has that content already, this one stays private.
        """
        block = self._blocks[block_id]
        assert block.num_owners > 0, f"block {block_id} has no owner"
        if hash_ in self._index or block.hash is not None:
            return
        self._index[hash_] = block
        block.hash, block.parent = hash_, parent
        last = self._events[-1] if self._events else None
        if isinstance(last, Stored) and last.hashes[-1] == parent:
            last.hashes.append(hash_)
        else:
            self._events.append(Stored(parent, [hash_]))

    def release(self, block_ids: Sequence[int]) -> None:
        """Give up one ownership of each block of a table, whose order is that of its tokens."""
        for id_ in reversed(block_ids):
            block = self._blocks[id_]
            assert block.num_owners > 0, f"block {id_} was released more often than acquired"
            block.num_owners -= 1
            if block.num_owners == 0:
                if block.hash is None:
                    self._free.append(id_)
                else:
                    self._cached.append(block)

    def clear(self) -> None:
        """Forget all reusable content; blocks that are in use stay with their owners."""
        self._evict(len(self._cached))
        for block in self._index.values():
            block.hash = None
        self._index.clear()
        self._events = [Cleared()]

    def snapshot(self) -> list[tuple[bytes, bytes]]:
        """(parent, hash) of every reusable block; a block comes after its parent if that is there too."""
        ordered: dict[bytes, bytes] = {}
        for hash_ in self._index:
            lineage: list[_Block] = []
            block = self._index.get(hash_)
            while block is not None and block.hash not in ordered:
                lineage.append(block)
                block = self._index.get(block.parent)
            for member in reversed(lineage):
                assert member.hash is not None
                ordered[member.hash] = member.parent
        return [(parent, hash_) for hash_, parent in ordered.items()]

    def take_events(self) -> list[KvEvent]:
        """What has changed in the set of reusable blocks since the last call."""
        events, self._events = self._events, []
        return events

    def validate(self) -> None:
        """Check every invariant of the pool; for tests and audits, it looks at all blocks."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        for block in self._blocks[1:]:
            is_listed = block.newer is not None
            assert (block.num_owners > 0) + (block.id in free) + is_listed == 1, (
                f"block {block.id}: two states"
            )
            assert not (block.id in free and block.hash is not None), f"block {block.id}: free but indexed"
            assert not is_listed or block.hash is not None, f"block {block.id}: cached without a hash"
            assert block.hash is None or self._index.get(block.hash) is block, f"block {block.id}: lost"
        assert NULL_BLOCK not in free
        assert self.num_free + self.num_cached + self.num_used == self.num_blocks
        assert self.num_used == sum(block.num_owners > 0 for block in self._blocks)

    def _evict(self, count: int) -> None:
        removed: list[bytes] = []
        for _ in range(count):
            block = self._cached.oldest()
            self._cached.remove(block)
            assert block.hash is not None
            del self._index[block.hash]
            removed.append(block.hash)
            block.hash = None
            self._free.append(block.id)
        if removed:
            self._events.append(Removed(removed))
