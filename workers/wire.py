"""The worker wire: one multiplexed link per (router replica, worker), length-prefixed msgpack frames.

    worker                                   router
      │  Challenge(nonce)                      │   the link opens
      │ ─────────────────────────────────────> │
      │      Attach(router_id, mac)            │   mac = HMAC(secret, nonce): both know the secret
      │ <───────────────────────────────────── │
      │  Hello(identity, limits)               │
      │ ─────────────────────────────────────> │
      │      Submit, Cancel, Describe, Drain   │
      │ <───────────────────────────────────── │
      │  Step (one a step, and one a second)   │
      │ ─────────────────────────────────────> │

A frame is a little-endian u32 length and that many bytes. Either side sends something every second; a
peer silent for `SILENCE_S` is lost. A lost router's requests are cancelled by the worker, a lost
worker's requests are failed by the router.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import socket
import struct
from typing import TypeVar

import msgspec

from kvcache.events import KvEvent
from workers.sampling.params import SamplingParams

PROTOCOL = 1
HEARTBEAT_S = 1.0
SILENCE_S = 3.0
MAX_FRAME_BYTES = 128 << 20

_LENGTH = struct.Struct("<I")


class ProtocolError(Exception):
    """The peer broke the wire protocol; the link is closed."""


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag=1):
    protocol: int
    nonce: bytes


class Hello(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=2):
    """Who the worker is, what it serves and how much it can hold."""

    worker_id: str
    epoch: int
    incarnation: str
    model: str
    role: str
    dtype: str
    block_tokens: int
    num_blocks: int
    max_context_tokens: int
    max_sequences: int
    pid: int


class Load(msgspec.Struct, frozen=True, array_like=True):
    """The worker's load after a step; blocks are split into free, cached (free but reusable) and used."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_cached_blocks: int
    num_used_blocks: int
    num_waiting_tokens: int  # prompt tokens that still have to be computed


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of the token at one position, and those of the best alternatives, best first."""

    token_id: int
    logprob: float | None  # None: the first prompt token has no predecessor
    top: list[tuple[int, float]]


class Delta(msgspec.Struct, array_like=True):
    """What one step added to one sequence; the last one of a sequence carries `finish`.

    `finish` is "stop" (EOS or a stop id), "length", "cancelled" or "error"; with "error", `error` is the
    message for the client and `error_code` the code of its kind (`workers/errors.py`). `num_cached_tokens`
    and `queue_s` come with the first delta of a sequence.
    """

    request_id: str
    index: int
    token_ids: list[int]
    finish: str | None = None
    logprobs: list[Logprob] | None = None
    num_cached_tokens: int | None = None
    queue_s: float | None = None
    prompt_logprobs: list[Logprob] | None = None
    error: str | None = None
    error_code: str | None = None


class Step(msgspec.Struct, array_like=True, tag=3):
    """One engine step, for one router: the deltas of its requests, the pool's events, the load.

    `event_seq` counts the events ever sent by this incarnation, this frame's included.
    """

    deltas: list[Delta]
    events: list[KvEvent]
    event_seq: int
    load: Load


class Snapshot(msgspec.Struct, array_like=True, tag=4):
    """The whole index of the worker: parent and hash of every reusable block, parents first."""

    event_seq: int
    blocks: list[tuple[bytes, bytes]]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=5):
    """All that a router must know to turn text into this model's tokens and back.

    `tokenizer_json` is a `tokenizers` file. `add_bos` tells whether a plain prompt starts with BOS; a chat
    template that writes BOS itself does not get a second one.
    """

    model: str
    tokenizer_json: bytes
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    bos_id: int | None
    eos_ids: list[int]
    add_bos: bool
    vocab_size: int
    created: int  # seconds since the epoch, for /v1/models


class Attach(msgspec.Struct, frozen=True, array_like=True, tag=16):
    router_id: str
    mac: bytes


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """A request to run. `salt` separates prefix caches of different tenants."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    salt: bytes = b""


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Stop a request, or one of its sequences; unknown ids are ignored (it may just have finished)."""

    request_id: str
    index: int | None = None


class Describe(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Ask for the ModelCard."""


class AskSnapshot(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Ask for a Snapshot."""


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Take no new requests; finish those that run."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=22):
    pass


ToRouter = Challenge | Hello | Step | Snapshot | ModelCard
ToWorker = Attach | Submit | Cancel | Describe | AskSnapshot | Drain | Heartbeat

_encoder = msgspec.msgpack.Encoder()
router_decoder: msgspec.msgpack.Decoder[ToRouter] = msgspec.msgpack.Decoder(ToRouter)
worker_decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)

T = TypeVar("T")


def frame(message: ToRouter | ToWorker) -> bytes:
    """The bytes of one frame, its length included."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """The next message. Raises ProtocolError for a frame that is too long or malformed,
    asyncio.IncompleteReadError or ConnectionError when the peer is gone."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {length} bytes passes the limit of {MAX_FRAME_BYTES}")
    try:
        return decoder.decode(await reader.readexactly(length))
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed frame of {length} bytes: {error}") from error


def authenticate(secret: bytes, nonce: bytes) -> bytes:
    """The proof that its sender knows the cluster's secret."""
    return hmac.digest(secret, b"headrace-wire" + nonce, hashlib.sha256)


def tune(writer: asyncio.StreamWriter) -> None:
    """No Nagle delay, and a dead host is noticed in about three seconds instead of hours."""
    sock = writer.get_extra_info("socket")
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", 3000),
    ):
        if hasattr(socket, name):  # Linux has all of them, other systems some
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for level, option, value in options:
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)
