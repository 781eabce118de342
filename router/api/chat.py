"""The answer to a chat completion, in OpenAI's shape.

A stream has, for each choice, a chunk with the role, chunks with content, and one with the reason why it
finished; then the usage, if it was asked for. Chunks are put together from bytes: per token, only its
text is encoded.
"""

from __future__ import annotations

import secrets
import string
from typing import Any

import msgspec

from router.api.answer import Usage
from router.api.choice import Piece
from router.api.logprobs import TokenLogprob, finite
from router.api.prepared import Prepared
from router.api.writer import BodyWriter, ChunkFrame, Collected, ResponseHead, Writer, encode_json
from router.message.events import (
    AssistantMessage,
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
)
from router.message.parser import MessageForm, MessageParser
from router.text.tokenizer import ModelText

_CALL_ID_CHARACTERS = string.ascii_letters + string.digits


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatTokenLogprob]
    refusal: None = None


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """`content` is null if there are only calls."""

    role: str
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] = []


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


def chat_writer(prepared: Prepared, text: ModelText, request_id: str, created: int) -> Writer:
    """The writer that the request asked for; `request_id` is the answer's id, `created` in seconds."""
    if prepared.stream:
        head = ResponseHead(request_id, "chat.completion.chunk", created, prepared.model)
        if prepared.form is not None:
            return MessageStream(head, text, prepared.include_usage, prepared.form)
        return ChatStream(head, text, prepared.include_usage)
    head = ResponseHead(request_id, "chat.completion", created, prepared.model)
    return BodyWriter(
        head,
        len(prepared.prompts) * prepared.n,
        lambda index, choice: _choice(index, choice, text, prepared.form),
    )


class ChatStream:
    """Chunks of `chat.completion.chunk` as server-sent events."""

    content_type = "text/event-stream"

    def __init__(self, head: ResponseHead, text: ModelText, include_usage: bool) -> None:
        self._text = text
        self._frame = ChunkFrame(head, include_usage)
        self._openings: dict[int, bytes] = {}  # by choice, from its first chunk on
        tail = self._frame.tail
        self._role = (
            b'{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null' + tail
        )
        self._bare_tail = b'},"logprobs":null,"finish_reason":null' + tail
        self._logprobs_tail = b',"finish_reason":null' + tail

    def add(self, index: int, piece: Piece) -> bytes:
        """The chunks that this piece makes; the first of a choice comes with its role."""
        opening = self._openings.get(index)
        role = b""
        if opening is None:
            opening = self._openings[index] = self._frame.opening + b'%d,"delta":' % index
            role = opening + self._role
        if piece.logprobs:
            chunk = b"".join(
                (
                    opening,
                    b'{"content":',
                    encode_json(piece.text),
                    b'},"logprobs":',
                    encode_json(chat_logprobs(piece.logprobs, self._text)),
                    self._logprobs_tail,
                )
            )
        elif piece.text:
            chunk = b"".join((opening, b'{"content":', encode_json(piece.text), self._bare_tail))
        else:
            chunk = b""
        if piece.finish is None:
            return role + chunk
        finish = b'{},"logprobs":null,"finish_reason":' + encode_json(piece.finish) + self._frame.tail
        return role + chunk + opening + finish

    def end(self, usage: Usage) -> bytes:
        """The usage, if it was asked for, and the end of the stream."""
        return self._frame.end(usage)


class MessageStream(ChatStream):
    """The same for answers that may be more than words: thoughts and calls have deltas of their own."""

    def __init__(self, head: ResponseHead, text: ModelText, include_usage: bool, form: MessageForm) -> None:
        super().__init__(head, text, include_usage)
        self._form = form
        self._parsers: dict[int, MessageParser] = {}

    def add(self, index: int, piece: Piece) -> bytes:
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._parsers[index] = MessageParser(self._form)
        events = parser.feed(piece.text)
        if piece.finish is not None:
            events += parser.flush()
        parts = [super().add(index, Piece("", piece.logprobs))]
        parts += [self._delta(index, event) for event in events]
        if piece.finish is not None:
            parts.append(super().add(index, Piece(finish=_finish(piece.finish, parser.has_calls))))
        return b"".join(parts)

    def _delta(self, index: int, event: Event) -> bytes:
        delta: dict[str, Any]
        match event:
            case Content(text):
                delta = {"content": text}
            case Reasoning(text):
                delta = {"reasoning_content": text}
            case CallStart(call, name):
                function = {"name": name, "arguments": ""}
                head = {"index": call, "id": new_call_id(), "type": "function", "function": function}
                delta = {"tool_calls": [head]}
            case CallArguments(call, fragment):
                delta = {"tool_calls": [{"index": call, "function": {"arguments": fragment}}]}
        return self._openings[index] + encode_json(delta)[:-1] + self._bare_tail


def new_call_id() -> str:
    """Nine letters and digits: what every family's template takes."""
    return "".join(secrets.choice(_CALL_ID_CHARACTERS) for _ in range(9))


def _finish(reason: str, has_calls: bool) -> str:
    return "tool_calls" if has_calls and reason == "stop" else reason


def read_message(text: str, form: MessageForm) -> AssistantMessage:
    """What a whole answer's text turns out to be."""
    parser, message = MessageParser(form), AssistantMessage()
    for event in (*parser.feed(text), *parser.flush()):
        message.add(event)
    return message


def chat_logprobs(entries: list[TokenLogprob], text: ModelText) -> ChatLogprobs:
    """OpenAI's `logprobs` of a choice."""
    return ChatLogprobs([_token(entry, text) for entry in entries])


def _token(entry: TokenLogprob, text: ModelText) -> ChatTokenLogprob:
    top = [
        TopLogprob(text.token_text(token_id), finite(logprob), list(text.token_bytes(token_id)))
        for token_id, logprob in entry.top
    ]
    logprob = finite(entry.logprob if entry.logprob is not None else 0.0)
    return ChatTokenLogprob(
        text.token_text(entry.token_id), logprob, list(text.token_bytes(entry.token_id)), top
    )


def _choice(index: int, choice: Collected, text: ModelText, form: MessageForm | None) -> ChatChoice:
    logprobs = chat_logprobs(choice.logprobs, text) if choice.logprobs is not None else None
    if form is None:
        message = ChatMessage("assistant", choice.text, None)
        return ChatChoice(index, message, logprobs, choice.finish)
    read = read_message(choice.text, form)
    calls = [ToolCall(new_call_id(), CalledFunction(call.name, call.arguments)) for call in read.calls]
    content = read.content or (None if calls else "")
    message = ChatMessage("assistant", content, None, read.reasoning or None, calls)
    return ChatChoice(index, message, logprobs, _finish(choice.finish or "stop", bool(calls)))
