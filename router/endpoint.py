"""The endpoints that take a body: how each reads a request and shapes an answer; all else they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from router.api import chat, completions
from router.api.prepared import ModelLimits, Prepared, prepare_chat, prepare_completion
from router.api.schema import ChatCompletionRequest, CompletionRequest, parse
from router.api.tokens import DetokenizeRequest, TokenizeRequest, detokenize, tokenize
from router.api.writer import Writer
from router.text.tokenizer import ModelText


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`name` is a label of the metrics, `id_prefix` begins the answers' ids."""

    name: str
    id_prefix: str
    parse: Callable[[bytes], Any]
    prepare: Callable[[Any, ModelText, ModelLimits], Prepared]
    writer: Callable[[Prepared, ModelText, str, int], Writer]


@dataclass(frozen=True, slots=True)
class Query:
    """An endpoint that the router answers by itself; `reply` makes the whole body."""

    name: str
    parse: Callable[[bytes], Any]
    reply: Callable[[Any, ModelText, ModelLimits], bytes]


CHAT = Endpoint(
    "chat_completions",
    "chatcmpl",
    lambda body: parse(ChatCompletionRequest, body),
    prepare_chat,
    chat.chat_writer,
)
COMPLETIONS = Endpoint(
    "completions",
    "cmpl",
    lambda body: parse(CompletionRequest, body),
    prepare_completion,
    completions.completion_writer,
)
TOKENIZE = Query("tokenize", lambda body: parse(TokenizeRequest, body), tokenize)
DETOKENIZE = Query("detokenize", lambda body: parse(DetokenizeRequest, body), detokenize)
