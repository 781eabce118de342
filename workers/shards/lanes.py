"""The lanes of a stage at work: sums of what each computed, and logits brought together.

Shapes: R rows, V vocabulary, W this lane's share of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from workers.shards.distributed import Distributed
from workers.shards.shared import SharedExchange


class ShardLanes(ABC):
    """See `workers.model.lanes.Lanes`. `waited_s` is the time spent here, `num_events` grows by using it."""

    exchange: int | None = None

    @abstractmethod
    def reduce(self, x: torch.Tensor) -> None: ...

    @abstractmethod
    def gather(self, logits_RW: torch.Tensor, widths: Sequence[int]) -> torch.Tensor | None:
        """Every lane's columns side by side on the first lane, [R, V]; None on the others."""

    @property
    @abstractmethod
    def waited_s(self) -> float: ...

    @property
    @abstractmethod
    def num_events(self) -> int: ...


class SharedLanes(ShardLanes):
    """On one host, through memory."""

    def __init__(self, exchange: SharedExchange, lane: int) -> None:
        self._exchange = exchange
        self._lane = lane
        self.exchange = exchange.address

    def reduce(self, x: torch.Tensor) -> None:
        self._exchange.reduce(x)

    def gather(self, logits_RW: torch.Tensor, widths: Sequence[int]) -> torch.Tensor | None:
        num_rows = len(logits_RW)
        whole = torch.empty(num_rows, sum(widths)) if self._lane == 0 else None
        at_once = self._exchange.capacity // (4 * max(widths))
        for first in range(0, num_rows, at_once):
            mine = logits_RW[first : first + at_once].contiguous()
            shares = self._exchange.share(mine, [4 * len(mine) * width for width in widths])
            if whole is not None:
                parts = [
                    share.view(torch.float32).view(len(mine), width)
                    for share, width in zip(shares, widths, strict=True)
                ]
                torch.cat(parts, dim=1, out=whole[first : first + at_once])
        return whole

    @property
    def waited_s(self) -> float:
        return self._exchange.waited_s

    @property
    def num_events(self) -> int:
        return self._exchange.num_meetings


class DistributedLanes(ShardLanes):
    """Through torch.distributed."""

    def __init__(self, group: Distributed) -> None:
        self._group = group

    def reduce(self, x: torch.Tensor) -> None:
        self._group.reduce(x)

    def gather(self, logits_RW: torch.Tensor, widths: Sequence[int]) -> torch.Tensor | None:
        if self._group.rank > 0:
            self._group.send(logits_RW.contiguous(), 0)
            return None
        parts = [logits_RW]
        for lane in range(1, self._group.size):
            part = logits_RW.new_empty(len(logits_RW), widths[lane])
            self._group.receive(part, lane)
            parts.append(part)
        return torch.cat(parts, dim=1)

    @property
    def waited_s(self) -> float:
        return self._group.waited_s

    @property
    def num_events(self) -> int:
        return self._group.num_events
