"""One HTTP exchange: a prepared request runs at the workers and its answer goes out, whole or streamed.

An ASGI response, so that everything it holds is given up in one place however it ends: finished, failed,
or left by the client. An error before the first byte is a proper HTTP response; after it, the last event
of the stream. What one step brought leaves in one write, and the first token waits for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.api.answer import Answer
from router.api.prepared import Prepared
from router.api.sse import error_event
from router.api.writer import Writer
from router.generation import Generation, Place
from router.http import failure
from router.metrics import CLIENT_LEFT, RequestMeter
from router.text.tokenizer import ModelText
from workers.errors import HeadraceError

logger = logging.getLogger(__name__)


class Exchange(Response):
    """Runs when Starlette calls it; `meter` ends with it."""

    def __init__(
        self,
        prepared: Prepared,
        text: ModelText,
        writer: Writer,
        place: Place,
        request_ids: Iterator[str],
        meter: RequestMeter,
    ) -> None:
        super().__init__()
        self._prepared = prepared
        self._answer = Answer(prepared, text)
        self._writer = writer
        self._place = place
        self._request_ids = request_ids
        self._meter = meter
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client leaves first."""
        answering = asyncio.ensure_future(self._run(send))
        leaving = asyncio.ensure_future(_client_leaves(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            leaving.cancel()
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await answering

    async def _run(self, send: Send) -> None:
        status, is_finished = CLIENT_LEFT, False
        try:
            await self._generate(send)
            status, is_finished = 200, True
        except OSError:
            pass  # the connection broke while something was being sent
        except Exception as error:
            status = error.status if isinstance(error, HeadraceError) else 500
            if not isinstance(error, HeadraceError):
                logger.exception("a request failed for an unforeseen reason")
            await self._send_error(send, error)
        finally:
            self._meter.end(status, self._answer.usage, time.monotonic(), is_finished=is_finished)

    async def _generate(self, send: Send) -> None:
        with Generation(self._prepared, self._place, self._request_ids) as generation:
            try:
                while not self._answer.is_finished:
                    await self._send(send, await self._next(generation), more=True)
            finally:
                if generation.num_open:
                    self._meter.observe_cancel(generation.num_open)
        await self._send(send, self._writer.end(self._answer.usage), more=False)

    async def _next(self, generation: Generation) -> bytes:
        """What the tokens that have come by now add to the answer's bytes."""
        parts: list[bytes] = []
        deltas = await generation.take()
        now = time.monotonic()
        for prompt, delta in deltas:
            index, piece = self._answer.feed(prompt, delta)
            if delta.queue_s is not None:
                self._meter.observe_queue(delta.queue_s)
            self._meter.observe(index, len(delta.token_ids), now)
            if piece.must_cancel:
                generation.cancel(prompt, delta.index)
                self._meter.observe_cancel(1)
            parts.append(self._writer.add(index, piece))
        return b"".join(parts)

    async def _send(self, send: Send, body: bytes, *, more: bool) -> None:
        if not body and more:
            return
        if not self._has_started:
            self._has_started = True
            headers = [(b"content-type", self._writer.content_type.encode())]
            if more:
                headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
            else:
                headers.append((b"content-length", str(len(body)).encode()))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})

    async def _send_error(self, send: Send, error: Exception) -> None:
        if self._has_started:
            await self._send(send, error_event(error), more=False)
            return
        self._has_started = True
        response = failure(error)
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await send({"type": "http.response.body", "body": response.body})


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
