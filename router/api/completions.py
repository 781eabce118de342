"""The answer to a completion, in OpenAI's shape; whole or as chunks of the same shape.

With echo, a choice's text starts with its prompt. Per token, only its text is encoded.
"""

from __future__ import annotations

import msgspec

from router.api.answer import Usage
from router.api.choice import Piece
from router.api.logprobs import LEAST, TokenLogprob, finite
from router.api.prepared import Prepared
from router.api.writer import BodyWriter, ChunkFrame, Collected, ResponseHead, Writer, encode_json
from router.text.tokenizer import ModelText


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Four lists of the same length; offsets are in characters of the choice's text."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


def completion_writer(prepared: Prepared, text: ModelText, request_id: str, created: int) -> Writer:
    """The writer that the request asked for; `request_id` is the answer's id, `created` in seconds."""
    head = ResponseHead(request_id, "text_completion", created, prepared.model)
    if prepared.stream:
        return CompletionStream(head, text, prepared.include_usage)
    return BodyWriter(
        head,
        len(prepared.prompts) * prepared.n,
        lambda index, choice: _choice(index, choice, text, prepared.shows_logprobs),
        lambda choices: best_of(choices, prepared),
    )


def best_of(choices: list[Collected], prepared: Prepared) -> list[Collected]:
    """Of each prompt's choices those to be returned, the best first; as they come if all are."""
    if prepared.num_returned == prepared.n:
        return choices
    kept = []
    for position, prompt in enumerate(prepared.prompts):
        num_echoed = len(prompt.text) if prepared.echo else 0
        group = choices[position * prepared.n : (position + 1) * prepared.n]
        group.sort(key=lambda choice: _mean_logprob(choice, num_echoed), reverse=True)
        kept += group[: prepared.num_returned]
    return kept


def _mean_logprob(choice: Collected, num_echoed: int) -> float:
    """Per generated token; a choice without any is the worst."""
    logprobs = [
        finite(entry.logprob)
        for entry in choice.logprobs or []
        if entry.logprob is not None and entry.offset >= num_echoed
    ]
    return sum(logprobs) / len(logprobs) if logprobs else LEAST


class CompletionStream:
    """Chunks of `text_completion` as server-sent events."""

    content_type = "text/event-stream"

    def __init__(self, head: ResponseHead, text: ModelText, include_usage: bool) -> None:
        self._text = text
        self._frame = ChunkFrame(head, include_usage)
        self._bare_tail = b',"logprobs":null,"finish_reason":null' + self._frame.tail

    def add(self, index: int, piece: Piece) -> bytes:
        """The chunk that this piece makes; none if there is nothing to show."""
        opening = self._frame.opening + b'%d,"text":' % index + encode_json(piece.text)
        if piece.finish is None and not piece.logprobs:
            return opening + self._bare_tail if piece.text else b""
        logprobs = completion_logprobs(piece.logprobs, self._text) if piece.logprobs else None
        return b"".join(
            (
                opening,
                b',"logprobs":',
                encode_json(logprobs),
                b',"finish_reason":',
                encode_json(piece.finish),
                self._frame.tail,
            )
        )

    def end(self, usage: Usage) -> bytes:
        """The usage, if it was asked for, and the end of the stream."""
        return self._frame.end(usage)


def completion_logprobs(entries: list[TokenLogprob], text: ModelText) -> CompletionLogprobs:
    """OpenAI's `logprobs` of a choice. `top_logprobs` has the token itself, even if others are likelier."""
    return CompletionLogprobs(
        text_offset=[entry.offset for entry in entries],
        token_logprobs=[None if entry.logprob is None else finite(entry.logprob) for entry in entries],
        tokens=[_name(entry.token_id, text) for entry in entries],
        top_logprobs=[_top(entry, text) for entry in entries],
    )


def _top(entry: TokenLogprob, text: ModelText) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    top = {_name(token_id, text): finite(logprob) for token_id, logprob in entry.top}
    top.setdefault(_name(entry.token_id, text), finite(entry.logprob))
    return top


def _name(token_id: int, text: ModelText) -> str:
    """The token's text; part of a character is written as OpenAI does, `bytes:\\xe2\\x80`."""
    raw = text.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _choice(index: int, choice: Collected, text: ModelText, shows_logprobs: bool) -> CompletionChoice:
    logprobs = None
    if choice.logprobs is not None and shows_logprobs:
        logprobs = completion_logprobs(choice.logprobs, text)
    return CompletionChoice(index, choice.text, logprobs, choice.finish)
