"""One incarnation of a worker as Ray sees it: an actor for each rank, which live and die as one.

The ranks of a gang share one placement group, which holds room for all of them or for none. Whoever of them
ends, the gang has ended; it is then killed as a whole, its room is given back, and a new one is started.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workers.actor import FollowerActor, WorkerActor
from workers.config import Endpoint, WorkerConfig
from workers.errors import NoWorker

PLACE_S = 60.0
RANK_CPUS = 0.001  # threads are shared out by the configuration; Ray only has to know which host
PING_S = 1.0
PING_DEADLINE_S = 15.0
GRACE_S = 0.2  # for the rank that knows why to say so, after another has ended


class Gang:
    """Not started yet; `start` once."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._group: PlacementGroup | None = None
        self._actors: list[Any] = []  # by rank

    async def start(self) -> Endpoint:
        """Start every rank and return when the leader listens. Raises what a rank raises, and NoWorker if
        there is no room for all of them."""
        config = self._config
        num_ranks = config.engine.num_ranks
        if num_ranks > 1:
            self._group = await self._reserve(num_ranks)
        leader = self._launch(WorkerActor, 0, config)
        if num_ranks == 1:
            return await leader.start.remote()  # type: ignore[no-any-return]
        followers = [self._launch(FollowerActor, rank, config, rank) for rank in range(1, num_ranks)]
        address = await leader.rendezvous.remote()
        starts = [leader.start.remote(), *(follower.start.remote(address) for follower in followers)]
        endpoint, *_ = await _all_or_first_error(starts)
        return endpoint  # type: ignore[no-any-return]

    async def watch(self) -> None:
        """Return when a rank ends; raise when one dies, fails, or its engine is stuck."""
        ends = [asyncio.ensure_future(actor.join.remote()) for actor in self._actors]
        try:
            while not any(end.done() for end in ends):
                ping = asyncio.ensure_future(asyncio.wait_for(self._actors[0].ping.remote(), PING_DEADLINE_S))
                await asyncio.wait([*ends, ping], return_when=asyncio.FIRST_COMPLETED)
                if ping.done():
                    ping.result()
                    await asyncio.wait(ends, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    ping.cancel()
            if len(ends) > 1:
                await asyncio.wait(ends, timeout=GRACE_S)
            raise_cause([end for end in ends if end.done()])
        finally:
            for end in ends:
                end.cancel()

    async def exposition(self) -> str:
        return await self._actors[0].exposition.remote()  # type: ignore[no-any-return]

    def ask_to_stop(self) -> asyncio.Future[None] | None:
        """The leader is told to stop, and stops the others; None if there is nobody to tell."""
        return asyncio.ensure_future(self._actors[0].stop.remote()) if self._actors else None

    def kill(self) -> None:
        """End every rank, whatever it is doing, and give the room back. Killing twice is harmless."""
        actors, self._actors = self._actors, []
        group, self._group = self._group, None
        for actor in actors:
            with contextlib.suppress(Exception):  # it may be dead already
                ray.kill(actor, no_restart=True)
        if group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(group)

    async def _reserve(self, num_ranks: int) -> PlacementGroup:
        config = self._config
        bundle: dict[str, float] = {"CPU": RANK_CPUS}
        if config.engine.device == "cuda":
            bundle["GPU"] = 1
        # Lanes exchange sums twice a layer: they belong on one host. Stages may lie on several.
        strategy = "STRICT_PACK" if config.engine.pipeline == 1 else "PACK"
        group = placement_group([bundle] * num_ranks, strategy=strategy)
        try:
            await asyncio.wait_for(group.ready(), PLACE_S)
        except TimeoutError:
            remove_placement_group(group)
            raise NoWorker(
                f"there was no room for the {num_ranks} ranks of worker {config.worker_id} within "
                f"{PLACE_S:.0f} s: each needs {bundle}"
                + (", all on one host" if strategy == "STRICT_PACK" else "")
            ) from None
        return group

    def _launch(self, kind: type, rank: int, *arguments: Any) -> Any:
        options: dict[str, Any] = {}
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=rank
            )
        actor = (
            ray.remote(kind)
            .options(
                num_cpus=0,
                num_gpus=1 if self._config.engine.device == "cuda" else 0,
                max_restarts=0,
                # Ray sets one thread for an actor without CPUs unless told so; idle threads must not spin.
                runtime_env={
                    "env_vars": {
                        "OMP_NUM_THREADS": str(self._config.engine.threads),
                        "TOKENIZERS_PARALLELISM": "false",
                    }
                },
                **options,
            )
            .remote(*arguments)
        )
        self._actors.append(actor)
        return actor


async def _all_or_first_error(calls: list[Any]) -> list[Any]:
    """What all calls return, or what the first of them raises that does."""
    futures = [asyncio.ensure_future(call) for call in calls]
    done, pending = await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
    if pending:
        await asyncio.wait(pending, timeout=GRACE_S)
    for future in pending:
        future.cancel()
    raise_cause([future for future in futures if future in done or future.done()])
    return [future.result() for future in futures]


def raise_cause(futures: list[asyncio.Future[Any]]) -> None:
    """Of errors the one that tells most: what a rank raised itself, rather than that another died."""
    errors = [error for future in futures if not future.cancelled() and (error := future.exception())]
    if errors:
        raise next((error for error in errors if isinstance(error, RayTaskError)), errors[0])
