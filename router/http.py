"""What every route needs of HTTP: reading a bounded body, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from router.api.errors import error_response
from workers.errors import BodyTooLarge, HeadraceError, InvalidRequest

logger = logging.getLogger(__name__)

LONG_BODY_BYTES = 16 << 10  # a longer one is parsed and tokenized in a thread, beside the streams


def json_response(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def failure(error: Exception) -> Response:
    """The response for an error that came before anything was sent."""
    shape = error_response(error)
    headers = {"retry-after": shape.retry_after} if shape.retry_after is not None else None
    return Response(shape.body, shape.status, headers, "application/json")


@dataclass(slots=True)
class Answer:
    response: Response


@contextmanager
def guarded() -> Iterator[Answer]:
    """Inside, `response` is set; it becomes the response of the error if one is raised instead."""
    answer = Answer(Response(status_code=500))
    try:
        yield answer
    except HeadraceError as error:
        answer.response = failure(error)
    except Exception as error:
        logger.exception("a request failed for an unforeseen reason")
        answer.response = failure(error)


async def no_route(request: Request, error: Exception) -> Response:
    """An unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    refusal = InvalidRequest(f"{request.method} {request.url.path} is not served here: {error.detail}")
    refusal.status = error.status_code
    return failure(refusal)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body. Raises BodyTooLarge as soon as it is known to be."""
    chunks: list[bytes] = []
    num_bytes = 0
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(f"{declared} bytes", max_bytes)
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise _too_large(f"more than {max_bytes} bytes", max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def aside(num_bytes: int, work: Callable[..., Any], *arguments: object) -> Any:
    """Do the work here if it is short, as the size of its input tells, else in a thread."""
    if num_bytes <= LONG_BODY_BYTES:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


def _too_large(actual: str, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request body has {actual}, the limit is {limit}; send less, or raise router.limits.body"
    )
