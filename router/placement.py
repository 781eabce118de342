"""Which worker a request goes to, and the router's own count of what it has sent where.

Pure: candidates in, a choice out. The ledger counts a request when it is dispatched, before any worker
has told of it, so that two requests placed in the same instant see each other; it is released exactly
once, whatever the request's end was. Releasing twice is harmless.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """One live worker that could take the request, and all that is known of its load.

    `num_sequences` and `num_waiting_tokens` are everyone's: this router's own dispatches and what the
    worker reports of others. Waiting tokens are prompt tokens that are still to be computed.
    """

    worker_id: str
    num_sequences: int
    num_waiting_tokens: int
    max_sequences: int


class PlacementPolicy(Protocol):
    """Chooses among the live workers of one model."""

    def choose(self, candidates: Sequence[Candidate]) -> int:
        """The index of the worker to use; there is at least one candidate."""
        ...


class LeastLoaded:
    """The worker whose batch is emptiest for its size; then the one with the fewest tokens to prefill.

    Equals are drawn at random, so that router replicas that see the same numbers do not all pick the same.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, candidates: Sequence[Candidate]) -> int:
        loads = [
            (candidate.num_sequences / max(candidate.max_sequences, 1), candidate.num_waiting_tokens)
            for candidate in candidates
        ]
        least = min(loads)
        return self._rng.choice([index for index, load in enumerate(loads) if load == least])


class WorkerLoad:
    """The ledger of one worker incarnation: what this router has in flight on it, and what others have.

    A report counts this router's requests too, up to those still on their way. What it holds beyond the
    router's own count of that moment is other routers' work; adding the present count gives the whole,
    without counting anything twice and without waiting for the next report.
    """

    __slots__ = ("num_other_sequences", "num_other_tokens", "num_own_sequences", "num_own_tokens")

    def __init__(self) -> None:
        self.num_own_sequences = 0
        self.num_own_tokens = 0  # of prompts whose first token has not come yet
        self.num_other_sequences = 0
        self.num_other_tokens = 0

    @property
    def num_sequences(self) -> int:
        return self.num_own_sequences + self.num_other_sequences

    @property
    def num_waiting_tokens(self) -> int:
        return self.num_own_tokens + self.num_other_tokens

    def dispatch(self, num_sequences: int, num_prompt_tokens: int) -> Ticket:
        """Count a request that is about to be sent."""
        return Ticket(self, num_sequences, num_prompt_tokens)

    def observe(self, num_sequences: int, num_waiting_tokens: int) -> None:
        """The worker has reported its totals."""
        self.num_other_sequences = max(0, num_sequences - self.num_own_sequences)
        self.num_other_tokens = max(0, num_waiting_tokens - self.num_own_tokens)


class Ticket:
    """One dispatched request in the ledger of its worker; `release` is its one way out."""

    __slots__ = ("_load", "_num_sequences", "_num_tokens")

    def __init__(self, load: WorkerLoad, num_sequences: int, num_prompt_tokens: int) -> None:
        self._load = load
        self._num_sequences = num_sequences
        self._num_tokens = num_prompt_tokens
        load.num_own_sequences += num_sequences
        load.num_own_tokens += num_prompt_tokens

    def start(self) -> None:
        """The first token has come: the prompt waits no longer."""
        self._load.num_own_tokens -= self._num_tokens
        self._num_tokens = 0

    def release(self) -> None:
        """The request is over, whichever way."""
        self.start()
        self._load.num_own_sequences -= self._num_sequences
        self._num_sequences = 0
