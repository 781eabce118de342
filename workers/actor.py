"""The worker actor: one process with one model replica, its engine thread and its wire server.

Ray starts it, watches it and kills it; not one token passes through Ray. The process ends as soon as
its engine does: a worker that cannot step must not look alive.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import sys
import uuid

from workers.config import Endpoint, WorkerConfig
from workers.engine import Engine, StepOutput
from workers.load.model import load_model
from workers.loop import EngineLoop
from workers.metrics import WorkerMetrics
from workers.server import WireServer
from workers.wire import Hello

logger = logging.getLogger(__name__)

STALL_S = 60.0  # a single step longer than this means a stuck engine


class WorkerActor:
    """Remote methods of a worker: `start` once, then `join` to learn of its end and `ping` for its health."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._incarnation = uuid.uuid4().hex
        self._ended = asyncio.Event()
        self._loop: EngineLoop | None = None
        self._server: WireServer | None = None
        self._metrics: WorkerMetrics | None = None

    async def start(self) -> Endpoint:
        """Load the model, warm the engine up, listen. Raises ConfigError if the model cannot be loaded."""
        config = self._config
        events = asyncio.get_running_loop()
        self._loop = EngineLoop(
            self._build_engine,
            publish=lambda output: events.call_soon_threadsafe(self._publish, output),
            on_failure=self._die,
        )
        engine = await asyncio.to_thread(self._loop.start)
        self._metrics = WorkerMetrics(config.model, config.worker_id, engine.load.num_free_blocks)
        self._server = WireServer(self._hello(engine), engine.card, config.secret, self._loop.call)
        port = await self._server.start(config.host)
        return Endpoint(
            config.worker_id, config.model, config.epoch, self._incarnation, config.host, port, os.getpid()
        )

    async def join(self) -> None:
        """Return when the worker was told to stop; a worker that dies makes this call fail instead."""
        await self._ended.wait()

    async def ping(self) -> None:
        """Raises RuntimeError if the engine is stuck in a step."""
        if self._loop is None:
            raise RuntimeError(f"worker {self._config.worker_id} has not started")
        if self._loop.stalled_s > STALL_S:
            raise RuntimeError(
                f"worker {self._config.worker_id} has spent {self._loop.stalled_s:.0f} s in one step "
                f"(limit {STALL_S:.0f} s)"
            )

    async def exposition(self) -> str:
        """The worker's Prometheus text."""
        return self._metrics.exposition() if self._metrics is not None else ""

    async def drain(self) -> None:
        """Take no new requests; those that run go on."""
        if self._server is not None:
            self._server.drain()

    async def stop(self) -> None:
        """Close every link and end the engine. Stopping twice is harmless."""
        if self._server is not None:
            await self._server.stop()
        if self._loop is not None:
            await asyncio.to_thread(self._loop.stop)
        self._ended.set()

    def _build_engine(self) -> Engine:
        config = self._config
        engine_config = config.engine
        model = load_model(
            config.source,
            engine_config.weights,
            name=config.model,
            device=engine_config.device,
            kernels=engine_config.kernels,
        )
        # Workers of one cluster share the key, so that equal prefixes have equal hashes everywhere.
        hash_key = hmac.digest(config.secret, b"headrace-kv-hash", hashlib.sha256)
        engine = Engine(model, engine_config, hash_key)
        engine.warm_up()
        return engine

    def _hello(self, engine: Engine) -> Hello:
        config = self._config
        return Hello(
            worker_id=config.worker_id,
            epoch=config.epoch,
            incarnation=self._incarnation,
            model=config.model,
            role=config.role,
            dtype=engine.dtype,
            block_tokens=config.engine.block_tokens,
            num_blocks=engine.load.num_free_blocks,
            max_context_tokens=engine.max_context_tokens,
            max_sequences=config.engine.max_sequences,
            pid=os.getpid(),
        )

    def _publish(self, output: StepOutput) -> None:
        assert self._server is not None
        assert self._metrics is not None
        self._metrics.observe(output)
        self._server.publish(output)

    def _die(self, error: BaseException) -> None:
        logger.critical(
            "engine of worker %s failed, ending the process", self._config.worker_id, exc_info=error
        )
        sys.stderr.flush()
        os._exit(1)
