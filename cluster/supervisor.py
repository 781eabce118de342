"""The life of one worker's place in the cluster, as a table, and when a worker that was lost comes back.

    event   from                to
    start   idle, backing off   starting      with a new epoch
    ready   starting            ready
    lost    starting, ready     backing off   for twice as long each time, up to a limit
    refuse  starting            failed        its configuration is wrong: trying again would not help
    stop    any but stopped     stopped

Pure: the clock and the random numbers come from outside.
"""

from __future__ import annotations

from enum import Enum
from random import Random


class State(Enum):
    IDLE = "idle"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing off"
    FAILED = "failed"
    STOPPED = "stopped"


TRANSITIONS: dict[tuple[str, State], State] = {
    ("start", State.IDLE): State.STARTING,
    ("start", State.BACKING_OFF): State.STARTING,
    ("ready", State.STARTING): State.READY,
    ("lost", State.STARTING): State.BACKING_OFF,
    ("lost", State.READY): State.BACKING_OFF,
    ("refuse", State.STARTING): State.FAILED,
    **{("stop", state): State.STOPPED for state in State if state is not State.STOPPED},
}

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
HEALTHY_S = 60.0  # a worker that was ready for this long starts with the first delay again
_STORY_EVENTS = 16


class InvalidTransition(Exception):
    """A move that is not in the table; the message tells what happened before."""


class Slot:
    """One worker's place. `epoch` numbers its incarnations; `first_epoch` lies above all earlier ones."""

    def __init__(self, worker_id: str, first_epoch: int, rng: Random) -> None:
        self.worker_id = worker_id
        self.epoch = first_epoch - 1
        self.state = State.IDLE
        self.reason: str | None = None  # why it was lost or refused, the last time
        self.num_losses = 0
        self.restart_at_s: float | None = None
        self.story: list[str] = []
        self._rng = rng
        self._failures = 0
        self._ready_at_s = 0.0

    def start(self, now: float) -> int:
        """An incarnation is being started; returns its epoch."""
        self._move("start", now)
        self.epoch += 1
        self.restart_at_s = None
        return self.epoch

    def ready(self, now: float) -> None:
        """It has answered."""
        self._move("ready", now)
        self._ready_at_s = now

    def lost(self, now: float, reason: str) -> float:
        """It died, fell silent or did not come up; returns the seconds until the next start."""
        was_ready = self.state is State.READY
        self._move("lost", now, reason)
        if was_ready and now - self._ready_at_s >= HEALTHY_S:
            self._failures = 0
        delay_s = min(FIRST_DELAY_S * 2.0**self._failures, LONGEST_DELAY_S)
        delay_s *= self._rng.uniform(0.8, 1.0)  # workers that were lost together come back one by one
        self._failures += 1
        self.num_losses += 1
        self.reason = reason
        self.restart_at_s = now + delay_s
        return delay_s

    def refuse(self, now: float, reason: str) -> None:
        """It cannot be started with this configuration."""
        self._move("refuse", now, reason)
        self.reason = reason

    def stop(self, now: float) -> None:
        """It is not wanted any more. Stopping twice is harmless."""
        if self.state is not State.STOPPED:
            self._move("stop", now)
            self.restart_at_s = None

    def _move(self, event: str, now: float, detail: str = "") -> None:
        target = TRANSITIONS.get((event, self.state))
        if target is None:
            raise InvalidTransition(
                f"worker {self.worker_id} cannot {event} while {self.state.value}; "
                f"before: {', '.join(self.story) or 'nothing'}"
            )
        self.story = [
            *self.story[1 - _STORY_EVENTS :],
            f"{event} at {now:.3f} s{': ' if detail else ''}{detail}",
        ]
        self.state = target
