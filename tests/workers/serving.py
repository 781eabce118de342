"""A worker without Ray: the engine thread behind its wire server, on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from workers.config import Endpoint, EngineConfig
from workers.engine import Engine
from workers.load.model import LoadedModel
from workers.loop import EngineLoop
from workers.server import WireServer
from workers.wire import Hello

SECRET = b"the cluster's secret"


class Worker:
    """What runs, and where."""

    def __init__(
        self, worker_id: str, engine: Engine, loop: EngineLoop, server: WireServer, port: int
    ) -> None:
        self.worker_id = worker_id
        self.engine, self.loop, self.server, self.port = engine, loop, server, port

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.worker_id, self.engine.card.model, 1, "i", "127.0.0.1", self.port, 1)

    async def load(self) -> tuple[int, int, int]:
        """Running, waiting and used blocks, read between two steps."""
        answer: asyncio.Future[tuple[int, int, int]] = asyncio.get_running_loop().create_future()

        def read(engine: Engine) -> None:
            load = engine.load
            counts = (load.num_running, load.num_waiting, load.num_used_blocks)
            answer.get_loop().call_soon_threadsafe(answer.set_result, counts)

        self.loop.call(read)
        return await answer


@asynccontextmanager
async def worker(model: LoadedModel, worker_id: str = "w") -> AsyncIterator[Worker]:
    """Serves `model` as `worker_id`."""
    events = asyncio.get_running_loop()
    loop = EngineLoop(
        lambda: Engine(model, EngineConfig(kv_memory_bytes=64 << 20), hash_key=b"key"),
        publish=lambda output: events.call_soon_threadsafe(server.publish, output),
        on_failure=lambda error: events.call_soon_threadsafe(pytest.fail, f"the engine died: {error}"),
    )
    engine = await asyncio.to_thread(loop.start)
    hello = Hello(
        worker_id=worker_id,
        epoch=1,
        incarnation="i",
        model=model.card.model,
        role="unified",
        dtype=engine.dtype,
        block_tokens=16,
        num_blocks=engine.load.num_free_blocks,
        max_context_tokens=engine.max_context_tokens,
        max_sequences=64,
        pid=1,
    )
    server = WireServer(hello, engine.card, SECRET, loop.call)
    port = await server.start("127.0.0.1")
    try:
        yield Worker(worker_id, engine, loop, server, port)
    finally:
        await server.stop()
        await asyncio.to_thread(loop.stop)


async def wait_idle(serving: Worker) -> None:
    while any(await serving.load()):
        await asyncio.sleep(0.01)
