"""A gang whose ranks are processes: the worker's actors as they are, but for Ray, and with faults to order.

SIGUSR1 makes a rank's next forward pass raise, SIGUSR2 makes it hang. Once the gang has started,
steps are slow, so that a fault comes in the midst of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Any

from tests.workers.shards.gangs import worker_config
from workers.actor import FollowerActor, WorkerActor
from workers.config import Endpoint, WorkerConfig
from workers.shards.meeting import Address
from workers.shards.rank import Rank

START_S = 60.0
STEP_S = 0.05
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.workers.shards.processes"])


def _order_faults(has_started: Event) -> None:
    ordered: list[int] = []

    def order(number: int, frame: FrameType | None) -> None:
        ordered.append(number)

    signal.signal(signal.SIGUSR1, order)
    signal.signal(signal.SIGUSR2, order)
    forward = Rank.forward

    def slow(self: Rank, *arguments: Any) -> Any:
        if has_started.is_set():
            time.sleep(STEP_S)
        if signal.SIGUSR1 in ordered:
            raise ArithmeticError("a fault to order")
        if signal.SIGUSR2 in ordered:
            time.sleep(3600)
        return forward(self, *arguments)

    Rank.forward = slow  # type: ignore[method-assign]


def _lead(config: WorkerConfig, pipe: Connection, has_started: Event) -> None:
    async def run() -> None:
        actor = WorkerActor(config)
        pipe.send(await actor.rendezvous())
        pipe.send(await actor.start())
        await actor.join()

    _order_faults(has_started)
    asyncio.run(run())


def _follow(config: WorkerConfig, rank: int, address: Address, has_started: Event) -> None:
    async def run() -> None:
        actor = FollowerActor(config, rank)
        await actor.start(address)
        await actor.join()

    _order_faults(has_started)
    with contextlib.suppress(RuntimeError):
        asyncio.run(run())
    os._exit(1)


class Processes:
    """`endpoint` is where the leader answers once it is there; rank i is `ranks[i]`."""

    def __init__(self, source: str, **engine: object) -> None:
        config = worker_config(source, **engine)
        ours, theirs = context.Pipe()
        has_started = context.Event()
        leader = context.Process(target=_lead, args=[config, theirs, has_started])
        leader.start()
        self.ranks: list[Any] = [leader]
        address = self._heard(ours)
        for rank in range(1, config.engine.num_ranks):
            follower = context.Process(target=_follow, args=[config, rank, address, has_started])
            follower.start()
            self.ranks.append(follower)
        self.endpoint: Endpoint = self._heard(ours)
        has_started.set()

    def _heard(self, pipe: Connection) -> Any:
        if not pipe.poll(START_S):
            self.kill()
            raise AssertionError(f"the leader said nothing within {START_S} s")
        return pipe.recv()

    def fault(self, rank: int, number: int) -> None:
        os.kill(self.ranks[rank].pid, number)

    @property
    def are_gone(self) -> bool:
        return not any(rank.is_alive() for rank in self.ranks)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.join(5)
