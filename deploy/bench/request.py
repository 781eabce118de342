"""What the bench sends: one conversation, with the time at which a trace says it began.

A conversation has one or more user turns; each is sent when the one before it has been answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """`num_input_tokens` is what was aimed at; what the server counted is in the record."""

    turns: tuple[str, ...]
    max_tokens: int
    num_input_tokens: int | None = None
    at_s: float | None = None  # since the start of the trace


class Workload(Protocol):
    """Where requests come from. Iterating gives the same requests every time."""

    name: str
    num_requests: int | None  # None: as many as are asked for
    has_times: bool

    def __iter__(self) -> Iterator[BenchRequest]: ...
