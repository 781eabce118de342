"""How an answer goes out, whole or streamed, in either endpoint's shape.

A writer is given every piece of every choice and, at the end, the usage; what it returns is sent as it
is. The route needs to know no more, so both endpoints and both ways share one loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec

from router.api.answer import Usage
from router.api.choice import Piece
from router.api.logprobs import TokenLogprob
from router.api.sse import DONE, event

encode_json: Callable[[object], bytes] = msgspec.json.Encoder().encode


class ResponseHead(msgspec.Struct, frozen=True):
    """What every body and chunk of one answer starts with; `created` is in seconds since the epoch."""

    id: str
    object: str
    created: int
    model: str


def new_id(prefix: str) -> str:
    """An id that no other answer has: "chatcmpl" and "cmpl" are OpenAI's prefixes."""
    return f"{prefix}-{secrets.token_hex(16)}"


class Writer(Protocol):
    """`content_type` is that of the response; `add` and `end` return bytes to send, maybe none."""

    content_type: str

    def add(self, index: int, piece: Piece) -> bytes: ...

    def end(self, usage: Usage) -> bytes: ...


@dataclass(slots=True)
class Collected:
    """A choice as it stands, of an answer that is sent whole."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish: str | None = None

    def add(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        if piece.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs += piece.logprobs
        if piece.finish is not None:
            self.finish = piece.finish

    @property
    def text(self) -> str:
        return "".join(self.texts)


ChoiceBody = TypeVar("ChoiceBody")


class Body(msgspec.Struct, Generic[ChoiceBody], frozen=True):
    """The whole response, or a chunk of it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChoiceBody]
    usage: Usage | None


class BodyWriter(Generic[ChoiceBody]):
    """Collects the whole answer; `select` says what goes out, `make` gives it its endpoint's shape."""

    content_type = "application/json"

    def __init__(
        self,
        head: ResponseHead,
        num_choices: int,
        make: Callable[[int, Collected], ChoiceBody],
        select: Callable[[list[Collected]], list[Collected]] = lambda choices: choices,
    ) -> None:
        self._head = head
        self._make = make
        self._select = select
        self._choices = [Collected() for _ in range(num_choices)]

    def add(self, index: int, piece: Piece) -> bytes:
        """Nothing goes out before the end."""
        self._choices[index].add(piece)
        return b""

    def end(self, usage: Usage) -> bytes:
        """The response's body."""
        head = self._head
        selected = self._select(self._choices)
        choices = [self._make(index, choice) for index, choice in enumerate(selected)]
        return encode_json(Body(head.id, head.object, head.created, head.model, choices, usage))


class ChunkFrame:
    """The bytes around a chunk's choice, which are the same in every chunk of an answer.

    With `include_usage` every chunk has a usage, null but for the one at the end that has no choice.
    """

    __slots__ = ("_head", "_include_usage", "opening", "tail")

    def __init__(self, head: ResponseHead, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self.opening = b"data: " + encode_json(head)[:-1] + b',"choices":[{"index":'
        self.tail = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"

    def end(self, usage: Usage) -> bytes:
        """The usage, if it was asked for, and the end of the stream."""
        if not self._include_usage:
            return DONE
        head = self._head
        body: Body[None] = Body(head.id, head.object, head.created, head.model, [], usage)
        return event(encode_json(body)) + DONE
