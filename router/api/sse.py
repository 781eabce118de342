"""Server-sent events, as OpenAI's streams use them.

An event is one `data:` line of JSON and a blank line. A stream ends with `[DONE]`, or with an event that
holds an error, after which nothing comes.
"""

from __future__ import annotations

from router.api.errors import error_body

DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """The event that carries `data`, which is JSON on one line."""
    return b"data: " + data + b"\n\n"


def error_event(error: Exception) -> bytes:
    """The event that tells of an error amid a stream; nothing follows it."""
    return event(error_body(error))
