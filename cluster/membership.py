"""Which workers there are: the one thing that the controller tells the routers."""

from __future__ import annotations

from dataclasses import dataclass

from workers.config import Endpoint


@dataclass(frozen=True, slots=True)
class Membership:
    """The workers that are ready. `version` grows with every change."""

    version: int
    workers: tuple[Endpoint, ...]
