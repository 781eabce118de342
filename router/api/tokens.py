"""`/tokenize` and `/detokenize`: what a model's tokenizer and template make of a text, and back."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import Field

from router.api.prepared import ModelLimits
from router.api.schema import MAX_TOOLS, Body, Message, TokenId, Tool
from router.text.tokenizer import ModelText
from workers.errors import InvalidRequest


class TokenizeRequest(Body):
    """The body of POST /tokenize: a prompt, or messages with the tools they may call."""

    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: list[Tool] = Field([], max_length=MAX_TOOLS)
    return_token_strs: bool = False

    def check(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("exactly one of prompt and messages is required", param="prompt")


class DetokenizeRequest(Body):
    """The body of POST /detokenize."""

    tokens: list[TokenId]


class Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


def tokenize(request: TokenizeRequest, text: ModelText, limits: ModelLimits) -> bytes:
    """The tokens that the other endpoints would make. Raises InvalidRequest or TemplateError."""
    if request.messages is not None:
        token_ids = text.encode_chat(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            variables=request.chat_template_kwargs,
            tools=[tool.model_dump(exclude_none=True) for tool in request.tools],
        )
    else:
        token_ids = text.encode(request.prompt or "", add_bos=request.add_special_tokens)
    names = [text.token_text(token_id) for token_id in token_ids] if request.return_token_strs else None
    return msgspec.json.encode(Tokens(token_ids, len(token_ids), limits.max_context_tokens, names))


def detokenize(request: DetokenizeRequest, text: ModelText, limits: ModelLimits) -> bytes:
    """The text of the tokens, special ones included. Raises InvalidRequest."""
    limits.check_ids(request.tokens, "tokens")
    return msgspec.json.encode(Detokenized(text.decode(request.tokens, skip_special_tokens=False)))
