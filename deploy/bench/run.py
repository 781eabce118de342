"""One measured run: requests go out as the arrivals say, records come in, until all is sent or time is up.

`stop` ends a run early: what is under way is given up and counted, what was answered is kept.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field

from deploy.bench.arrivals import Arrivals, ClosedLoop, OpenLoop, TraceTimes
from deploy.bench.client import Client
from deploy.bench.record import Record
from deploy.bench.request import BenchRequest


@dataclass(slots=True)
class Outcome:
    """What a run measured. `num_given_up` conversations were under way when it was stopped.

    `late_s` is by how much the client itself sent requests later than they were due, at worst.
    """

    records: list[Record] = field(default_factory=list)
    num_given_up: int = 0
    wall_s: float = 0.0
    late_s: float = 0.0


class Run:
    """At most `num_requests` conversations, none begun after `duration_s`."""

    def __init__(
        self,
        client: Client,
        arrivals: Arrivals,
        num_requests: int | None,
        duration_s: float | None,
        progress: Callable[[list[Record]], None] = lambda records: None,
    ) -> None:
        self._client = client
        self._arrivals = arrivals
        self._num_requests = num_requests
        self._duration_s = duration_s
        self._progress = progress
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcome = Outcome()
        self.is_stopped = False
        self._idle = asyncio.Event()
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Give up what is under way and send nothing more."""
        self.is_stopped = True
        for task in list(self._tasks):
            task.cancel()

    async def measure(self, requests: Iterable[BenchRequest]) -> Outcome:
        """Send the requests; returns when the last one is answered or given up."""
        started_s = time.perf_counter()
        ended_s = started_s + self._duration_s if self._duration_s is not None else None
        wanted = itertools.islice(requests, self._num_requests)
        match self._arrivals:
            case ClosedLoop(num_streams):
                shared = iter(wanted)
                for _ in range(num_streams):
                    self._begin(self._stream(shared, ended_s))
            case OpenLoop() | TraceTimes():
                self._begin(self._send_in_time(self._arrivals.times(wanted), started_s, ended_s))
        await self._idle.wait()
        if self._failure is not None:
            raise self._failure
        self._outcome.wall_s = time.perf_counter() - started_s
        return self._outcome

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
            self.stop()
        if not self._tasks:
            self._idle.set()

    async def _stream(self, requests: Iterator[BenchRequest], ended_s: float | None) -> None:
        for request in requests:
            if self._is_over(ended_s):
                return
            await self._converse(request)

    async def _send_in_time(
        self, timed: Iterator[tuple[float, BenchRequest]], started_s: float, ended_s: float | None
    ) -> None:
        for due_s, request in timed:
            if ended_s is not None and started_s + due_s >= ended_s:
                return
            await asyncio.sleep(max(started_s + due_s - time.perf_counter(), 0.0))
            if self.is_stopped:
                return
            self._outcome.late_s = max(self._outcome.late_s, time.perf_counter() - started_s - due_s)
            self._begin(self._converse(request))

    async def _converse(self, request: BenchRequest) -> None:
        try:
            records = await self._client.send(request)
        except asyncio.CancelledError:
            self._outcome.num_given_up += 1
            raise
        self._outcome.records += records
        self._progress(records)

    def _is_over(self, ended_s: float | None) -> bool:
        return self.is_stopped or (ended_s is not None and time.perf_counter() >= ended_s)
