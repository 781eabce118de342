"""The answer to a chat completion, in OpenAI's shape.

A stream has, for each choice, a chunk with the role, chunks with content, and one with the reason why it
finished; then the usage, if it was asked for. Chunks are put together from bytes: per token, only its
text is encoded.
"""

from __future__ import annotations

import msgspec

from router.api.answer import Usage
from router.api.choice import Piece
from router.api.logprobs import TokenLogprob, finite
from router.api.prepared import Prepared
from router.api.writer import BodyWriter, ChunkFrame, Collected, ResponseHead, Writer, encode_json
from router.text.tokenizer import ModelText


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


class ChatMessage(msgspec.Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


def chat_writer(prepared: Prepared, text: ModelText, request_id: str, created: int) -> Writer:
    """The writer that the request asked for; `request_id` is the answer's id, `created` in seconds."""
    if prepared.stream:
        head = ResponseHead(request_id, "chat.completion.chunk", created, prepared.model)
        return ChatStream(head, text, prepared.include_usage)
    head = ResponseHead(request_id, "chat.completion", created, prepared.model)
    return BodyWriter(
        head, len(prepared.prompts) * prepared.n, lambda index, choice: _choice(index, choice, text)
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


def _choice(index: int, choice: Collected, text: ModelText) -> ChatChoice:
    logprobs = chat_logprobs(choice.logprobs, text) if choice.logprobs is not None else None
    return ChatChoice(index, ChatMessage(choice.text), logprobs, choice.finish)
