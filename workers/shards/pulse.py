"""Ranks of a gang watch each other: who ends, falls silent or makes no progress takes the gang with it.

A thread of its own sends a beat twice a second and listens, whatever the engine's thread is waiting for. The
leader watches every follower, a follower its leader. A closed link is noticed at once, a stopped process
after `SILENCE_S`, a step in which no rank computes or exchanges anything after the stall limit. A silent rank
on this machine is killed: it may hold memory, and might wake up later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping

from workers.errors import GangLost
from workers.shards.links import Link
from workers.shards.messages import Beat, Failure

logger = logging.getLogger(__name__)

BEAT_S = 0.5
SILENCE_S = 3.0
FIRST_STALL_S = 60.0  # until the gang has warmed up
LEAST_STALL_S = 3.5
SLACK = 5.0  # times the longest stretch without an event that the warm-up had


class Pulse:
    """`links` by rank. `num_events` tells this rank's own progress, `is_busy` whether there should be any;
    `killable` are the pids of ranks on this machine. `on_lost` is called once, on this object's thread."""

    def __init__(
        self,
        links: Mapping[int, Link],
        killable: Mapping[int, int],
        num_events: Callable[[], int],
        is_busy: Callable[[], bool],
        on_lost: Callable[[GangLost], object],
    ) -> None:
        self._links = links
        self._killable = killable
        self._num_events = num_events
        self._is_busy = is_busy
        self._on_lost = on_lost
        self._ended = threading.Event()
        self._waker, self._wake = socket.socketpair()
        self._events = dict.fromkeys(links, 0)  # as they told last
        self._stall_limit_s = FIRST_STALL_S
        self._longest_stall_s = 0.0
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer; from then on the links are this caller's. Stopping twice is harmless."""
        self._ended.set()
        self._wake.close()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join(SILENCE_S)

    def settle(self) -> None:
        """The gang has warmed up: from now on a stall is what takes far longer than anything did so far."""
        self._stall_limit_s = max(LEAST_STALL_S, SLACK * self._longest_stall_s)

    def tell_failure(self, reason: str) -> None:
        """Let the other side know why this rank is about to end."""
        for link in self._links.values():
            with contextlib.suppress(GangLost):
                link.send(Failure(reason))

    def _run(self) -> None:
        try:
            self._watch()
        except GangLost as error:
            if not self._ended.is_set():
                self._ended.set()
                self._on_lost(error)
        finally:
            self._waker.close()

    def _watch(self) -> None:
        heard_s: dict[int, float] = {}  # who has not been heard yet is still loading
        progress, progressed_s = self._progress(), time.monotonic()
        with selectors.DefaultSelector() as selector:
            for rank, link in self._links.items():
                selector.register(link, selectors.EVENT_READ, rank)
            selector.register(self._waker, selectors.EVENT_READ, None)
            while not self._ended.is_set():
                for link in self._links.values():
                    link.send(Beat(self._num_events()))
                deadline_s = time.monotonic() + BEAT_S
                while (left_s := deadline_s - time.monotonic()) > 0:
                    for key, _ in selector.select(left_s):
                        if key.data is None:
                            return
                        self._hear(key.data)
                        heard_s[key.data] = time.monotonic()
                now_s = time.monotonic()
                for rank, at_s in heard_s.items():
                    if now_s - at_s > SILENCE_S:
                        self._kill([rank])
                        raise GangLost(f"rank {rank} was silent for {now_s - at_s:.1f} s")
                if progress != self._progress() or not self._is_busy():
                    progress, progressed_s = self._progress(), now_s
                self._longest_stall_s = max(self._longest_stall_s, now_s - progressed_s)
                if now_s - progressed_s > self._stall_limit_s:
                    self._kill(list(self._links))
                    raise GangLost(f"no rank has got on with a step for {now_s - progressed_s:.1f} s")

    def _hear(self, rank: int) -> None:
        match self._links[rank].receive(SILENCE_S):
            case Beat(num_events):
                self._events[rank] = num_events
            case Failure(reason):
                raise GangLost(f"rank {rank} failed: {reason}")
            case other:
                raise GangLost(f"rank {rank} sent {type(other).__name__} on its pulse link")

    def _progress(self) -> list[int]:
        return [self._num_events(), *self._events.values()]

    def _kill(self, ranks: list[int]) -> None:
        for rank in ranks:
            pid = self._killable.get(rank)
            if pid is not None and pid != os.getpid():
                logger.error("killing rank %d, pid %d, which does not answer", rank, pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
