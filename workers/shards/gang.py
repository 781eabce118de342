"""From a worker's configuration to a rank that is loaded, connected and ready to step."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from workers.config import WorkerConfig
from workers.errors import GangLost
from workers.load.model import LoadedModel, PartLoader
from workers.shards.follower import Follower
from workers.shards.leader import GangDecoder
from workers.shards.meeting import Address, Meeting, Members, join
from workers.shards.rank import Rank
from workers.shards.transport import Transport

OnLost = Callable[[GangLost], object]


def lead(config: WorkerConfig, meeting: Meeting, on_lost: OnLost) -> LoadedModel:
    """Rank 0's model, once every follower is ready. Raises ConfigError and GangLost."""
    loader = PartLoader.open(config.source, config.engine)
    members = meeting.gather(config.engine.num_ranks)
    rank = _seated(config, loader, 0, members)
    card = loader.card(config.model)
    return LoadedModel(GangDecoder(rank, members, on_lost), card)


def follow(config: WorkerConfig, address: Address, number: int, on_lost: OnLost) -> Follower:
    """Rank `number`, ready to run. Raises ConfigError and GangLost."""
    torch.set_num_threads(config.engine.threads or os.cpu_count() or 1)
    loader = PartLoader.open(config.source, config.engine)
    members = join(address, config.secret, number)
    return Follower(_seated(config, loader, number, members), number, members, on_lost)


def _seated(config: WorkerConfig, loader: PartLoader, number: int, members: Members) -> Rank:
    transport = Transport(loader.cut, number, members, config.engine, loader.device)
    lanes, ring = transport.lanes(), transport.ring()
    return Rank(loader.cut, number, loader.load(number, lanes), lanes, ring)
