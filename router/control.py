"""The router's side of the controller: found by its name, asked with deadlines, allowed to be away."""

from __future__ import annotations

import asyncio
from typing import Any

import ray

from cluster.membership import NAME, NAMESPACE, POLL_S, Membership
from workers.errors import NoWorker

CALL_S = 2.0
PUSH_S = 1.0  # between two pushes while requests come and go
IDLE_PUSH_S = 4.0  # while nothing happens; the controller forgets a router after 10 s


class Control:
    """The named actor. A call raises NoWorker if it is not answered in time."""

    def __init__(self) -> None:
        self._actor: Any = None

    async def membership(self, version: int) -> Membership:
        """A long poll, see `Controller.membership`."""
        return await self._call("membership", version, deadline_s=POLL_S + CALL_S)  # type: ignore[no-any-return]

    async def status(self) -> list[dict[str, Any]]:
        return await self._call("status")  # type: ignore[no-any-return]

    async def expositions(self, replica: str, text: str) -> list[str]:
        return await self._call("expositions", replica, text)  # type: ignore[no-any-return]

    async def push(self, replica: str, text: str) -> None:
        await self._call("push_exposition", replica, text)

    async def _call(self, method: str, *arguments: object, deadline_s: float = CALL_S) -> Any:
        try:
            async with asyncio.timeout(deadline_s):
                if self._actor is None:
                    self._actor = await asyncio.to_thread(ray.get_actor, NAME, NAMESPACE)
                return await getattr(self._actor, method).remote(*arguments)
        except Exception as error:
            self._actor = None  # look it up anew next time
            reason = str(error) or type(error).__name__
            raise NoWorker(
                f"the controller does not answer: {reason}; try again soon", retry_after_s=1.0
            ) from error
