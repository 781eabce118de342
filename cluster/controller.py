"""The controller: a named actor that starts the workers, watches them and starts them again.

It alone decides who is a member; routers follow by long poll. No request and no token passes through it,
so that while it is away everything that runs goes on running. A worker's successor is started only after
its predecessor was killed, and with a higher epoch, so that two of them never answer as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayTaskError

from cluster.gang import Gang
from cluster.membership import POLL_S, Membership
from cluster.supervisor import Slot, State
from workers.config import Endpoint, WorkerConfig
from workers.errors import ConfigError

logger = logging.getLogger(__name__)

START_S = 600.0  # a large model is read from a slow disk
FRESH_S = 0.5  # how long a scrape waits for workers to tell their newest numbers
STOP_S = 1.5
EXPOSITION_AGE_S = 10.0  # what a router pushed counts for this long


class Worker:
    """One place, its present incarnation and what that told last."""

    def __init__(self, config: WorkerConfig, first_epoch: int) -> None:
        self.config = config
        self.slot = Slot(config.worker_id, first_epoch, random.Random())
        self.gang: Gang | None = None
        self.endpoint: Endpoint | None = None
        self.exposition = ""

    async def start(self, epoch: int) -> None:
        """Start an incarnation and wait until it listens. Raises what a rank raises."""
        self.gang = Gang(dataclasses.replace(self.config, epoch=epoch))
        self.endpoint = await asyncio.wait_for(self.gang.start(), START_S)

    async def watch(self) -> None:
        """Return when the incarnation ends; raise when it dies or is stuck."""
        assert self.gang is not None
        await self.gang.watch()

    async def refresh(self) -> None:
        """Ask for its numbers."""
        if self.gang is not None:
            self.exposition = await self.gang.exposition()

    def kill(self) -> None:
        """End the incarnation, whatever it is doing. Killing twice is harmless."""
        gang, self.gang, self.endpoint, self.exposition = self.gang, None, None, ""
        if gang is not None:
            gang.kill()


class Controller:
    """Remote methods: `membership`, `status`, `expositions`, `push_exposition`, `stop`."""

    def __init__(self, configs: Sequence[WorkerConfig]) -> None:
        # Epochs grow with the clock, so that they do so even over a restart of this very actor.
        first_epoch = int(time.time())
        self._workers = {config.worker_id: Worker(config, first_epoch) for config in configs}
        self._version = first_epoch << 20
        self._changed = asyncio.Condition()
        self._pushed: dict[str, tuple[float, str]] = {}
        self._keepers = [asyncio.ensure_future(self._keep(worker)) for worker in self._workers.values()]

    async def membership(self, version: int) -> Membership:
        """The membership as soon as it is not `version` any more, or after POLL_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S), self._changed:
                await self._changed.wait_for(lambda: self._version != version)
        return Membership(
            self._version,
            tuple(worker.endpoint for worker in self._ready if worker.endpoint is not None),
        )

    async def status(self) -> list[dict[str, Any]]:
        """Every worker's place, for people."""
        return [
            {
                "worker_id": worker.config.worker_id,
                "model": worker.config.model,
                "role": worker.config.role,
                "state": worker.slot.state.value,
                "epoch": worker.slot.epoch,
                "pid": worker.endpoint.pid if worker.endpoint else None,
                "losses": worker.slot.num_losses,
                "reason": worker.slot.reason,
            }
            for worker in self._workers.values()
        ]

    async def expositions(self, replica: str, text: str) -> list[str]:
        """The Prometheus texts of all workers, as new as they can be had quickly, and of all routers.

        The router that asks brings its own; so whichever is asked, no counter ever goes back.
        """
        await self.push_exposition(replica, text)
        asked = [asyncio.ensure_future(worker.refresh()) for worker in self._ready]
        if asked:
            await asyncio.wait(asked, timeout=FRESH_S)
        for answer in asked:
            answer.add_done_callback(_retrieve)
        horizon = time.monotonic() - EXPOSITION_AGE_S
        self._pushed = {name: entry for name, entry in self._pushed.items() if entry[0] > horizon}
        return [worker.exposition for worker in self._ready] + [text for _, text in self._pushed.values()]

    async def push_exposition(self, replica: str, text: str) -> None:
        """A router replica's Prometheus text."""
        self._pushed[replica] = time.monotonic(), text

    async def stop(self) -> None:
        """Stop every worker, politely for STOP_S, then at once. Stopping twice is harmless."""
        for keeper in self._keepers:
            keeper.cancel()
        now = time.monotonic()
        stopping: list[asyncio.Future[None]] = []
        for worker in self._workers.values():
            worker.slot.stop(now)
            if worker.gang is not None and (asked := worker.gang.ask_to_stop()) is not None:
                stopping.append(asked)
        if stopping:
            await asyncio.wait(stopping, timeout=STOP_S)
        for worker in self._workers.values():
            worker.kill()
        await self._announce()

    @property
    def _ready(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.slot.state is State.READY]

    async def _keep(self, worker: Worker) -> None:
        """Have an incarnation of this worker run, for ever."""
        slot = worker.slot
        while True:
            epoch = slot.start(time.monotonic())
            try:
                await worker.start(epoch)
                slot.ready(time.monotonic())
                logger.info("worker %s is ready, epoch %d", slot.worker_id, epoch)
                await self._announce()
                await worker.watch()
                reason = "it ended"
            except Exception as error:
                cause = error.cause if isinstance(error, RayTaskError) else error
                if isinstance(cause, ConfigError):
                    slot.refuse(time.monotonic(), cause.message)
                    worker.kill()
                    return
                reason = " ".join(str(cause).split())[:500] or type(cause).__name__
            worker.kill()
            delay_s = slot.lost(time.monotonic(), reason)
            logger.warning(
                "worker %s was lost, starting it again in %.1f s: %s", slot.worker_id, delay_s, reason
            )
            await self._announce()
            await asyncio.sleep(delay_s)

    async def _announce(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()


def _retrieve(answer: asyncio.Future[None]) -> None:
    """A worker that cannot tell its numbers has died: its keeper deals with that."""
    if not answer.cancelled():
        answer.exception()
