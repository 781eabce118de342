"""The fleet and its links against real workers: real engine, real sockets, no Ray."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest

from cluster.membership import Membership
from router.api.prepared import Prepared, prepare_completion
from router.api.schema import CompletionRequest, parse
from router.fleet import Fleet
from router.generation import Generation
from router.placement import LeastLoaded
from tests.workers.serving import SECRET, wait_idle, worker
from workers.config import Endpoint
from workers.errors import NoWorker, UnknownModel, WorkerLost
from workers.load.model import LoadedModel, load_model

MODEL = "smollm2-135m"
REQUEST_IDS = (f"r1-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("builtin:smollm2-135m", "bf16", name=MODEL)


@asynccontextmanager
async def fleet_of(*endpoints: Endpoint, secret: bytes = SECRET) -> AsyncIterator[Fleet]:
    fleet = Fleet("r1", secret, LeastLoaded(Random(0)), [MODEL])
    fleet.apply(Membership(1, endpoints))
    try:
        yield fleet
    finally:
        await fleet.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def prepared(fleet: Fleet, **fields: Any) -> Prepared:
    body = {
        "model": MODEL,
        "prompt": "The river",
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }
    text, limits = fleet.model(MODEL)
    return prepare_completion(parse(CompletionRequest, json.dumps(body).encode()), text, limits)


def generation(fleet: Fleet, request: Prepared) -> Generation:
    return Generation(request, partial(fleet.place, MODEL), REQUEST_IDS)


async def read(running: Generation) -> dict[tuple[int, int], list[int]]:
    """The tokens of every sequence, to the end."""
    tokens: dict[tuple[int, int], list[int]] = {}
    while running.num_open:
        for prompt, delta in await running.take():
            tokens.setdefault((prompt, delta.index), []).extend(delta.token_ids)
    return tokens


def test_prompts_and_sequences_come_back_apart(loaded: LoadedModel) -> None:
    async def test() -> None:
        async with worker(loaded) as one, fleet_of(one.endpoint) as fleet:
            await until(lambda: fleet.is_ready)
            request = prepared(fleet, prompt=["The river", "A mill"], n=2)
            with generation(fleet, request) as running:
                tokens = await read(running)
            assert sorted(tokens) == [(0, 0), (0, 1), (1, 0), (1, 1)]
            assert all(len(ids) == 8 for ids in tokens.values())
            assert tokens[0, 0] == tokens[0, 1] != tokens[1, 0]
            await wait_idle(one)

    run(test)


def test_leaving_a_generation_cancels_it_and_releases_the_ledger(loaded: LoadedModel) -> None:
    async def test() -> None:
        async with worker(loaded) as one, fleet_of(one.endpoint) as fleet:
            await until(lambda: fleet.is_ready)
            with generation(fleet, prepared(fleet, max_tokens=2000)) as running:
                await running.take()
                (member,) = fleet._members.values()
                assert member.load.num_own_sequences == 1
            assert (member.load.num_own_sequences, member.load.num_own_tokens) == (0, 0)
            await wait_idle(one)

    run(test)


def test_a_lost_worker_fails_what_is_open_and_the_next_is_refused(loaded: LoadedModel) -> None:
    async def test() -> None:
        async with worker(loaded) as one, fleet_of(one.endpoint) as fleet:
            await until(lambda: fleet.is_ready)
            with generation(fleet, prepared(fleet, max_tokens=2000)) as running:
                await running.take()
                await one.server.stop()
                with pytest.raises(WorkerLost, match="worker w was lost: the connection was closed"):
                    await read(running)
            with pytest.raises(NoWorker, match=f"no worker that serves '{MODEL}' is alive now") as refused:
                fleet.place(MODEL, 1, 1)
            assert refused.value.retry_after_s is not None

    run(test)


@pytest.mark.parametrize(
    "change",
    [{"incarnation": "another"}, {"epoch": 7}, {"worker_id": "x"}],
    ids=["incarnation", "epoch", "id"],
)
def test_a_worker_that_is_not_who_the_controller_says_is_never_used(
    loaded: LoadedModel, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with worker(loaded) as one, fleet_of(dataclasses.replace(one.endpoint, **change)) as fleet:
            await until(lambda: "expected" in caplog.text)
            assert not fleet.is_ready
            with pytest.raises(NoWorker):
                fleet.model(MODEL)

    run(test)


def test_a_router_without_the_secret_never_attaches(
    loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with worker(loaded) as one, fleet_of(one.endpoint, secret=b"a guess") as fleet:
            await until(lambda: "is the cluster's secret the same?" in caplog.text)
            assert not fleet.is_ready

    run(test)


def test_an_unknown_model_is_told_from_one_that_nobody_serves_now(loaded: LoadedModel) -> None:
    async def test() -> None:
        async with fleet_of() as fleet:
            with pytest.raises(UnknownModel, match=f"'gpt-9' is not served here; served: {MODEL}"):
                fleet.model("gpt-9")
            with pytest.raises(NoWorker):
                fleet.model(MODEL)

    run(test)


def test_a_worker_that_leaves_the_membership_finishes_what_it_runs(loaded: LoadedModel) -> None:
    async def test() -> None:
        async with worker(loaded) as one, fleet_of(one.endpoint) as fleet:
            await until(lambda: fleet.is_ready)
            with generation(fleet, prepared(fleet, max_tokens=60)) as running:
                await running.take()
                fleet.apply(Membership(2, ()))
                assert not fleet.is_ready
                tokens = await read(running)
            assert 50 < sum(map(len, tokens.values())) < 60

    run(test)


def test_two_workers_share_the_load(loaded: LoadedModel) -> None:
    async def test() -> None:
        async with (
            worker(loaded) as one,
            worker(loaded, "w2") as two,
            fleet_of(one.endpoint, two.endpoint) as fleet,
        ):
            await until(lambda: len(fleet._live(MODEL)) == 2)
            with contextlib.ExitStack() as stack:
                for _ in range(6):
                    stack.enter_context(generation(fleet, prepared(fleet, max_tokens=2000)))
                while [(await each.load())[0] for each in (one, two)] != [3, 3]:
                    await asyncio.sleep(0.01)

    run(test)
