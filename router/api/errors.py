"""Errors as OpenAI's clients read them: a status, a JSON body and, where it helps, Retry-After.

Only a HeadraceError's message is shown to a client; of any other exception nothing is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from workers.errors import HeadraceError


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """What to send; `retry_after` is the value of that header, in whole seconds."""

    status: int
    body: bytes
    retry_after: str | None


def error_body(error: Exception) -> bytes:
    """`{"error": {...}}` in JSON."""
    if isinstance(error, HeadraceError):
        detail = ErrorDetail(error.message, error.type, error.param, error.code)
    else:
        detail = ErrorDetail(
            "an internal error occurred; the server's log has it", "internal_error", None, None
        )
    return msgspec.json.encode(ErrorBody(detail))


def error_response(error: Exception) -> ErrorResponse:
    """The response for an error that came before the first byte of an answer."""
    status, retry_after = 500, None
    if isinstance(error, HeadraceError):
        status = error.status
        if error.retry_after_s is not None:
            retry_after = str(max(1, math.ceil(error.retry_after_s)))
    return ErrorResponse(status, error_body(error), retry_after)
