"""What came of one turn, read from the bytes of its answer and the times at which they arrived.

Events are parsed when the answer is complete, so that measuring costs little while others answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Record:
    """Times in seconds; `started_s` on the client's clock. With an `error`, the rest is what came before it.

    `gaps_s` are the times between pieces of text. A server may put several tokens in one piece.
    """

    started_s: float
    e2e_s: float
    ttft_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    text: str = ""
    error: str | None = None

    @property
    def mean_itl_s(self) -> float | None:
        """From the first token to the last, per token; None with a single token."""
        if self.num_output_tokens < 2 or not self.gaps_s:
            return None
        return sum(self.gaps_s) / (self.num_output_tokens - 1)

    def meets(self, ttft_s: float, itl_s: float) -> bool:
        """Whether it was answered within an SLO on the time to its first token and its mean ITL."""
        if self.error is not None or self.ttft_s is None:
            return False
        return self.ttft_s <= ttft_s and (self.mean_itl_s or 0.0) <= itl_s


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class Arrivals:
    """The bytes of a stream of server-sent events as they come, each piece with its time."""

    started_s: float
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    def record(self, ended_s: float, error: str | None = None) -> Record:
        """The record of the whole stream; a stream that is cut short has an error."""
        times: list[float] = []
        texts: list[str] = []
        usage = _Usage()
        is_done = False
        try:
            for at_s, data in _events(self.pieces):
                if data == b"[DONE]":
                    is_done = True
                    continue
                event = _decoder.decode(data)
                usage = event.usage or usage
                if event.error is not None:
                    error = error or _message(event.error)
                if text := _text(event):
                    times.append(at_s)
                    texts.append(text)
        except msgspec.DecodeError as reason:
            error = error or f"an event of the stream cannot be read: {reason}"
        if error is None and not is_done:
            error = "the stream ended without [DONE]"
        details = usage.prompt_tokens_details
        return Record(
            self.started_s,
            ended_s - self.started_s,
            times[0] - self.started_s if times else None,
            tuple(later - earlier for earlier, later in pairwise(times)),
            usage.prompt_tokens,
            usage.completion_tokens if usage.completion_tokens is not None else len(times),
            (details.cached_tokens or 0) if details is not None else 0,
            "".join(texts),
            error,
        )


def error_message(body: bytes) -> str:
    """What an OpenAI error body says, or its first characters."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace").strip()
    return _message(decoded.get("error", decoded) if isinstance(decoded, dict) else decoded)


def _message(inner: Any) -> str:
    message = inner.get("message", inner) if isinstance(inner, dict) else inner
    return str(message)[:200]


def _events(pieces: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """The data of each event with the time at which it was complete."""
    found: list[tuple[float, bytes]] = []
    rest = b""
    for at_s, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        found += [(at_s, line[5:].strip()) for line in lines if line.startswith(b"data:")]
    return found


def _text(event: _Event) -> str:
    if not event.choices:
        return ""
    choice = event.choices[0]
    delta = choice.delta
    if delta is not None:
        return (delta.reasoning_content or "") + (delta.content or "")
    return choice.text or ""
