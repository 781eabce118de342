"""Which workers there are, and whom to ask: all that routers need to know of the controller."""

from __future__ import annotations

from dataclasses import dataclass

from workers.config import Endpoint

NAME, NAMESPACE = "headrace-controller", "headrace"  # of the controller's actor
POLL_S = 10.0  # the controller answers a long poll after this long at the latest


@dataclass(frozen=True, slots=True)
class Membership:
    """The workers that are ready. `version` grows with every change."""

    version: int
    workers: tuple[Endpoint, ...]
