"""What the leader of a gang and its followers say to each other, as msgpack frames on plain TCP links.

follower                                   leader
  │   Greeting(nonce)                        │   two links: one for steps, one for pulses
  │ <─────────────────────────────────────── │
  │   Join(rank, epoch, mac, host)           │
  │ ───────────────────────────────────────> │
  │   Roster(every rank's host)              │   all are there: every rank loads its part
  │ <─────────────────────────────────────── │
  │   Ready(what it computes with)           │
  │ ───────────────────────────────────────> │
  │   Allocate, then Forward, Logits, Stop   │   steps: one Forward each, nothing comes back
  │ <─────────────────────────────────────── │
  │   Beat, Failure                          │   pulses: both ways, twice a second
  │ <──────────────────────────────────────> │
"""

from __future__ import annotations

from typing import Literal

import msgspec

Purpose = Literal["steps", "pulse"]


class Greeting(msgspec.Struct, frozen=True, array_like=True, tag=1):
    nonce: bytes


class Join(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """`machine` is equal for ranks that can share memory; `shares` tells whether this one can at all."""

    rank: int
    epoch: int
    purpose: Purpose
    mac: bytes
    machine: str
    shares: bool
    pid: int


class Seat(msgspec.Struct, frozen=True, array_like=True):
    """Where a rank runs."""

    machine: str
    shares: bool
    pid: int


class Roster(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Every rank's seat, the leader's first."""

    seats: list[Seat]


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """What the rank computes with; it must be the same on all."""

    dtype: str
    decoder: str
    device: str


class Allocate(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Make the KV cache; `num_blocks` include the null block."""

    num_blocks: int
    block_tokens: int
    dtype: str


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of a step. Of the block table numbered `table`, `blocks` follow the first `num_known`."""

    token_ids: list[int]
    start: int
    rows: int  # a place in `ROWS`
    table: int
    num_known: int
    blocks: list[int]


class Forward(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """One step. With `logits` the wanted rows' logits are computed at once."""

    pieces: list[Piece]
    logits: bool


class Logits(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Compute the logits of these hidden states, the bytes of a matrix of so many rows."""

    num_rows: int
    hidden: bytes


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The gang is dissolved in peace."""


class Beat(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A sign of life; `num_events` grows with everything the rank has computed and exchanged."""

    num_events: int


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Why the sender will end in a moment."""

    reason: str


Message = Greeting | Join | Roster | Ready | Allocate | Forward | Logits | Stop | Beat | Failure

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(body: bytes | bytearray) -> Message:
    """Raises msgspec.MsgspecError if it is no message."""
    return _decoder.decode(body)
