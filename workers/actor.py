"""The actors of a worker: the one with its engine and its wire server, and the other ranks of its gang.

Ray starts them, watches them and kills them; not one token passes through Ray. A process ends as soon as
its engine does, or any rank of its gang: a worker that cannot step must not look alive.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import sys
import threading
import uuid
from concurrent.futures import Future

from workers.config import Endpoint, WorkerConfig
from workers.engine import Engine, StepOutput
from workers.errors import GangLost
from workers.load.model import load_model
from workers.loop import EngineLoop
from workers.metrics import WorkerMetrics
from workers.server import WireServer
from workers.shards.gang import follow, lead
from workers.shards.leader import GangDecoder
from workers.shards.meeting import Address, Meeting
from workers.wire import Hello

logger = logging.getLogger(__name__)

STALL_S = 60.0  # a single step longer than this means a stuck engine
LAST_WORDS_S = 0.5  # between telling why this process ends and its end


class WorkerActor:
    """Remote methods of a worker: `start` once, then `join` to learn of its end and `ping` for its health."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._incarnation = uuid.uuid4().hex
        self._ended = asyncio.Event()
        self._loop: EngineLoop | None = None
        self._server: WireServer | None = None
        self._metrics: WorkerMetrics | None = None
        self._meeting: Meeting | None = None  # of a gang, until it has met
        self._gang: GangDecoder | None = None

    async def rendezvous(self) -> Address:
        """Where the gang's followers find this leader; to be called before `start` if there are any."""
        config = self._config
        self._meeting = Meeting(config.host, config.secret, config.epoch)
        return self._meeting.address

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
        self._metrics = WorkerMetrics(
            config.model, config.worker_id, engine.load.num_free_blocks, self._collective_s
        )
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
        if self._gang is not None:
            self._gang.close()
        self._ended.set()

    def _build_engine(self) -> Engine:
        config = self._config
        engine_config = config.engine
        if self._meeting is not None:
            model = lead(config, self._meeting, self._die)
            assert isinstance(model.decoder, GangDecoder)
            self._gang = model.decoder
        else:
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
        if self._gang is not None:
            self._gang.settle()
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

    def _collective_s(self) -> dict[str, float]:
        return {} if self._gang is None else self._gang.waited_s

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


class FollowerActor:
    """Remote methods of a rank that is not the leader: `start` once, then `join` to learn of its end."""

    def __init__(self, config: WorkerConfig, rank: int) -> None:
        self._config = config
        self._rank = rank
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()

    async def start(self, address: Address) -> None:
        """Load this rank's part and join the gang. Raises ConfigError and GangLost."""
        threading.Thread(target=self._run, args=[address], name="engine", daemon=True).start()
        await asyncio.wrap_future(self._started)

    async def join(self) -> None:
        """Return when the gang is dissolved; raise what this rank failed with. If another rank is the cause,
        the process just ends."""
        await asyncio.wrap_future(self._ended)

    def _run(self, address: Address) -> None:
        try:
            follower = follow(self._config, address, self._rank, self._die)
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        try:
            follower.run()
            self._ended.set_result(None)
        except GangLost as error:
            self._die(error)
        except BaseException as error:
            logger.critical("rank %d failed, its gang ends", self._rank, exc_info=error)
            self._ended.set_exception(RuntimeError(f"rank {self._rank} failed: {error}"))
            threading.Timer(LAST_WORDS_S, os._exit, [1]).start()

    def _die(self, error: GangLost) -> None:
        logger.critical("rank %d ends with its gang: %s", self._rank, error)
        sys.stderr.flush()
        os._exit(1)
