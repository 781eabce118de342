"""One incarnation of a worker, as long as it is a member: its link, kept up, and its load.

The link is opened anew whenever it is lost. A member that retires keeps its link until the last request
on it is over; one that is stopped fails what is open at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from router.link import WorkerLink
from router.placement import WorkerLoad
from workers.config import Endpoint
from workers.errors import HeadraceError
from workers.wire import SILENCE_S, ProtocolError, Step

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # between two tries to attach
RETIRED_POLL_S = 0.2


class Member:
    """Attaches at once. `learn` is awaited with each new link before it counts as live; what it raises
    closes the link, and it is tried again later."""

    def __init__(
        self,
        endpoint: Endpoint,
        router_id: str,
        secret: bytes,
        learn: Callable[[WorkerLink], Awaitable[None]],
    ) -> None:
        self.endpoint = endpoint
        self.load = WorkerLoad()
        self._router_id = router_id
        self._secret = secret
        self._learn = learn
        self._link: WorkerLink | None = None
        loop = asyncio.get_running_loop()
        self._keeper = loop.create_task(self._keep())
        self._retiring: asyncio.Task[None] | None = None

    @property
    def live_link(self) -> WorkerLink | None:
        """The link, if the worker has been heard on it within the heartbeat."""
        link = self._link
        return link if link is not None and not link.is_lost and link.silent_s < SILENCE_S else None

    @property
    def is_stopped(self) -> bool:
        return self._keeper.done()

    def retire(self) -> None:
        """Stop once nothing is open."""
        self._retiring = asyncio.get_running_loop().create_task(self._stop_when_idle())

    def stop(self) -> None:
        """Close the link; what is open on it fails. Stopping twice is harmless."""
        self._keeper.cancel()
        if self._retiring is not None:
            self._retiring.cancel()

    async def wait_stopped(self) -> None:
        """Return when the link is closed for good."""
        await asyncio.wait([self._keeper])

    async def _stop_when_idle(self) -> None:
        while self._link is not None and self._link.num_requests:
            await asyncio.sleep(RETIRED_POLL_S)
        self._keeper.cancel()

    async def _keep(self) -> None:
        worker, pause_s = self.endpoint.worker_id, FIRST_PAUSE_S
        while True:
            try:
                link = await WorkerLink.open(self.endpoint, self._router_id, self._secret)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, ProtocolError) as error:
                logger.warning("cannot attach to worker %s: %s", worker, error or type(error).__name__)
            else:
                if await self._use(link):
                    pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _use(self, link: WorkerLink) -> bool:
        """Serve over the link until it is lost; False if it was never live."""
        try:
            await self._learn(link)
            link.on_step = self._observe
            self._link = link
            logger.info("attached to worker %s", self.endpoint.worker_id)
            logger.warning("%s", await link.wait_lost())
            return True
        except (TimeoutError, ProtocolError, HeadraceError) as error:
            logger.error("refusing worker %s: %s", self.endpoint.worker_id, error or type(error).__name__)
            return False
        finally:
            self._link = None
            link.close()

    def _observe(self, step: Step) -> None:
        load = step.load
        self.load.observe(load.num_running + load.num_waiting, load.num_waiting_tokens)
