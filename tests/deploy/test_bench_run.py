"""A run against endpoints that behave and misbehave: who is sent when, and what becomes of each request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from aiohttp import web

from deploy.bench.arrivals import ClosedLoop, OpenLoop
from deploy.bench.client import Client, Target
from deploy.bench.preparation import Unusable, first_model, prepare
from deploy.bench.request import BenchRequest
from deploy.bench.run import Outcome, Run

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """Answers chats with three words, `pause_s` apart, and counts who is there at the same time."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s
        self.num_now = self.num_most = 0
        self.bodies: list[dict[str, object]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.num_now += 1
        self.num_most = max(self.num_most, self.num_now)
        try:
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for word in ("one", " two", " three"):
                await asyncio.sleep(self.pause_s)
                await response.write(event({"choices": [{"index": 0, "delta": {"content": word}}]}))
            usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
            await response.write(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
            return response
        finally:
            self.num_now -= 1


async def refuse(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "no live worker"}}, status=503)


async def break_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(event({"choices": [{"index": 0, "delta": {"content": "one"}}]}))
    assert request.transport is not None
    request.transport.abort()
    return response


def event(data: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@contextlib.asynccontextmanager
async def client_of(handler: Handler, timeout_s: float = 10.0) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with Client(Target(f"http://127.0.0.1:{port}", "m", timeout_s=timeout_s)) as client:
            yield client
    finally:
        await runner.cleanup()


def requests(count: int) -> Iterator[BenchRequest]:
    return iter([BenchRequest((f"prompt {number}",), 3) for number in range(count)])


def test_a_closed_loop_keeps_its_streams_busy_and_no_more() -> None:
    async def measure() -> tuple[Outcome, Endpoint]:
        endpoint = Endpoint(pause_s=0.01)
        async with client_of(endpoint.answer) as client:
            return await Run(client, ClosedLoop(3), 10, None).measure(requests(99)), endpoint

    outcome, endpoint = asyncio.run(measure())
    assert len(outcome.records) == 10
    assert endpoint.num_most == 3
    for record in outcome.records:
        assert (record.error, record.text, record.num_output_tokens) == (None, "one two three", 3)
        assert record.ttft_s is not None
        assert 0.01 <= record.ttft_s <= record.e2e_s - 0.02
        assert len(record.gaps_s) == 2
        assert min(record.gaps_s) > 0.005


def test_an_open_loop_does_not_wait_for_answers() -> None:
    async def measure() -> Endpoint:
        endpoint = Endpoint(pause_s=0.2)
        async with client_of(endpoint.answer) as client:
            await Run(client, OpenLoop(100.0, "constant", 0), 10, None).measure(requests(99))
        return endpoint

    assert asyncio.run(measure()).num_most == 10


def test_nothing_is_begun_after_the_duration_but_what_runs_is_awaited() -> None:
    async def measure() -> Outcome:
        async with client_of(Endpoint(pause_s=0.1).answer) as client:
            return await Run(client, ClosedLoop(2), None, 0.45).measure(requests(99))

    outcome = asyncio.run(measure())
    first_s = min(record.started_s for record in outcome.records)
    assert all(record.error is None for record in outcome.records)
    assert all(record.started_s - first_s < 0.45 for record in outcome.records)
    assert max(record.started_s + record.e2e_s for record in outcome.records) > first_s + 0.45


def test_a_stopped_run_keeps_what_was_answered_and_counts_what_was_not() -> None:
    async def measure() -> tuple[Outcome, bool]:
        async with client_of(Endpoint(pause_s=0.05).answer) as client:
            answered = 0

            def count(records: list[object]) -> None:
                nonlocal answered
                answered += len(records)
                if answered == 4:
                    run.stop()

            run = Run(client, ClosedLoop(2), None, None, count)  # type: ignore[arg-type]
            return await run.measure(requests(99)), run.is_stopped

    outcome, is_stopped = asyncio.run(measure())
    assert is_stopped
    assert len(outcome.records) == 4
    assert outcome.num_given_up <= 2


def test_a_conversation_carries_its_history() -> None:
    async def measure() -> tuple[Outcome, Endpoint]:
        endpoint = Endpoint()
        async with client_of(endpoint.answer) as client:
            asked = [BenchRequest(("first", "second"), 3)]
            return await Run(client, ClosedLoop(1), None, None).measure(asked), endpoint

    outcome, endpoint = asyncio.run(measure())
    assert len(outcome.records) == 2
    assert endpoint.bodies[1]["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "one two three"},
        {"role": "user", "content": "second"},
    ]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (refuse, "HTTP 503: no live worker"),
        (break_off, "Client"),
        (Endpoint(pause_s=5.0).answer, "no answer within 0.3 s"),
    ],
    ids=["refused", "broken off", "silent"],
)
def test_what_fails_is_a_record_with_the_reason(handler: Handler, message: str) -> None:
    async def measure() -> Outcome:
        async with client_of(handler, timeout_s=0.3) as client:
            return await Run(client, ClosedLoop(1), 2, None).measure(requests(2))

    outcome = asyncio.run(measure())
    assert len(outcome.records) == 2
    for record in outcome.records:
        assert record.error is not None
        assert message in record.error
        assert not record.meets(10.0, 10.0)


def test_an_endpoint_that_refuses_the_first_request_is_unusable() -> None:
    async def ask() -> None:
        async with client_of(refuse) as client:
            await prepare(client, seed=0, num_warmups=1)

    with pytest.raises(Unusable, match="the first request failed: HTTP 503: no live worker"):
        asyncio.run(ask())


def test_nobody_there_is_unusable_at_once() -> None:
    started_s = time.monotonic()
    with pytest.raises(Unusable, match="is the server running there"):
        asyncio.run(first_model(Target("http://127.0.0.1:9", "")))
    assert time.monotonic() - started_s < 5.0
