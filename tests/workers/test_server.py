"""The worker's side of the wire, spoken to over a real socket, with the real engine behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from kvcache.events import Cleared, Removed, Stored
from tests.workers.serving import SECRET, wait_idle, worker
from workers.load.model import LoadedModel
from workers.sampling.params import SamplingParams
from workers.wire import (
    AskSnapshot,
    Attach,
    Cancel,
    Challenge,
    Delta,
    Describe,
    Drain,
    Heartbeat,
    Hello,
    ModelCard,
    Snapshot,
    Step,
    Submit,
    ToRouter,
    ToWorker,
    authenticate,
    frame,
    read_frame,
    router_decoder,
)

PROMPT = list(range(2000, 2100))


class Router:
    """A router replica reduced to its socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.steps: list[Step] = []

    @classmethod
    async def attach(cls, port: int, router_id: str = "r1", secret: bytes = SECRET) -> Router:
        router = cls(*await asyncio.open_connection("127.0.0.1", port))
        challenge = await router.read()
        assert isinstance(challenge, Challenge)
        router.send(Attach(router_id, authenticate(secret, challenge.nonce)))
        return router

    def send(self, message: ToWorker) -> None:
        self.writer.write(frame(message))

    async def read(self) -> ToRouter:
        async with asyncio.timeout(30):
            return await read_frame(self.reader, router_decoder)

    async def read_until(self, found: Callable[[ToRouter], bool]) -> ToRouter:
        while True:
            message = await self.read()
            self.send(Heartbeat())
            if isinstance(message, Step):
                self.steps.append(message)
            if found(message):
                return message

    @property
    def deltas(self) -> list[Delta]:
        return [delta for step in self.steps for delta in step.deltas]

    async def close(self) -> None:
        self.writer.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def long_request(request_id: str, **fields: object) -> Submit:
    params = SamplingParams(max_tokens=2000, temperature=0.0, ignore_eos=True)
    return Submit(request_id, PROMPT, msgspec.structs.replace(params, **fields))


def test_a_router_without_the_secret_is_refused(smollm2: LoadedModel) -> None:
    async def test() -> None:
        async with worker(smollm2) as serving:
            router = await Router.attach(serving.port, secret=b"a guess")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await router.read()
            await router.close()

    run(test)


def test_a_request_streams_one_token_a_step_and_then_finishes(smollm2: LoadedModel) -> None:
    async def test() -> None:
        async with worker(smollm2) as serving:
            router = await Router.attach(serving.port)
            assert isinstance(await router.read(), Hello)
            router.send(long_request("a", max_tokens=5))
            await router.read_until(lambda _: any(delta.finish for delta in router.deltas))
            assert [len(delta.token_ids) for delta in router.deltas] == [1] * 5
            assert [delta.finish for delta in router.deltas] == [None] * 4 + ["length"]
            assert router.deltas[0].num_cached_tokens == 0
            assert router.deltas[0].queue_s is not None
            await router.close()

    run(test)


@pytest.mark.parametrize("way", ["cancel", "leave"])
def test_a_cancel_or_a_lost_router_frees_the_engine(smollm2: LoadedModel, way: str) -> None:
    async def test() -> None:
        async with worker(smollm2) as serving:
            router = await Router.attach(serving.port)
            router.send(long_request("a", n=2))
            await router.read_until(lambda _: len(router.deltas) >= 4)
            if way == "cancel":
                router.send(Cancel("a"))
            else:
                router.writer.transport.abort()
            await wait_idle(serving)
            await router.close()

    run(test)


def test_each_router_gets_its_own_tokens_and_everyones_events(smollm2: LoadedModel) -> None:
    async def test() -> None:
        async with worker(smollm2) as serving:
            one, two = await Router.attach(serving.port, "r1"), await Router.attach(serving.port, "r2")
            one.send(long_request("a", max_tokens=20))
            two.send(long_request("b", max_tokens=20))
            await one.read_until(lambda _: any(delta.finish for delta in one.deltas))
            await two.read_until(lambda _: any(delta.finish for delta in two.deltas))
            assert {delta.request_id for delta in one.deltas} == {"a"}
            assert {delta.request_id for delta in two.deltas} == {"b"}
            assert any(step.events for step in one.steps)
            await one.close()
            await two.close()

    run(test)


def test_events_replayed_from_nothing_give_the_snapshot(smollm2: LoadedModel) -> None:
    async def test() -> None:
        async with worker(smollm2) as serving:
            router = await Router.attach(serving.port)
            router.send(long_request("a", max_tokens=70))
            await router.read_until(lambda _: any(delta.finish for delta in router.deltas))
            router.send(AskSnapshot())
            snapshot = await router.read_until(lambda message: isinstance(message, Snapshot))
            assert isinstance(snapshot, Snapshot)
            index: set[bytes] = set()
            for event in (event for step in router.steps for event in step.events):
                match event:
                    case Stored(_, hashes):
                        index |= set(hashes)
                    case Removed(hashes):
                        index -= set(hashes)
                    case Cleared():
                        index.clear()
            assert index == {block for _, block in snapshot.blocks}
            assert len(index) == (100 + 69) // 16
            assert snapshot.event_seq == router.steps[-1].event_seq
            await router.close()

    run(test)


def test_the_card_has_all_that_a_router_needs_to_tokenize(smollm2: LoadedModel) -> None:
    async def test() -> None:
        async with worker(smollm2) as serving:
            router = await Router.attach(serving.port)
            router.send(Describe())
            card = await router.read_until(lambda message: isinstance(message, ModelCard))
            assert card == smollm2.card
            await router.close()

    run(test)


def test_a_draining_worker_refuses_new_requests_and_finishes_those_that_run(smollm2: LoadedModel) -> None:
    async def test() -> None:
        async with worker(smollm2) as serving:
            router = await Router.attach(serving.port)
            router.send(long_request("a", max_tokens=8))
            router.send(Drain())
            router.send(long_request("b"))
            await router.read_until(lambda _: sum(delta.finish is not None for delta in router.deltas) == 2)
            endings = {delta.request_id: delta.finish for delta in router.deltas if delta.finish}
            assert endings == {"a": "length", "b": "error"}
            await router.close()

    run(test)


def test_garbage_on_the_link_closes_that_link_only(smollm2: LoadedModel) -> None:
    async def test() -> None:
        async with worker(smollm2) as serving:
            good, bad = await Router.attach(serving.port, "good"), await Router.attach(serving.port, "bad")
            bad.writer.write(b"\x04\x00\x00\x00\xff\xff\xff\xff")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await bad.read_until(lambda _: False)
            good.send(long_request("a", max_tokens=2))
            await good.read_until(lambda _: any(delta.finish for delta in good.deltas))
            await good.close()
            await bad.close()

    run(test)
