"""What a block pool tells the routers about its contents, in the order in which it happened.

A stream of these events, applied to an empty index, gives the set of blocks the pool can serve as a
prefix hit. They travel in `Step` frames (`workers/wire.py`) with a sequence number that betrays gaps.
"""

from __future__ import annotations

import msgspec


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """These blocks can now be reused; each is the child of the one before it, the first of `parent`."""

    parent: bytes
    hashes: list[bytes]


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """These blocks were evicted."""

    hashes: list[bytes]


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Every block was dropped."""


KvEvent = Stored | Removed | Cleared
