"""The pipeline stages of a lane, in a ring: what one stage leaves enters the next, and the last one's hidden
states enter the first."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from workers.shards.distributed import Distributed
from workers.shards.shared import SharedMailbox


class Edge(ABC):
    """From this rank to the next stage, or from the stage before to this one."""

    @abstractmethod
    def send(self, x: torch.Tensor) -> None: ...

    @abstractmethod
    def receive(self, x: torch.Tensor) -> None: ...

    @property
    @abstractmethod
    def waited_s(self) -> float: ...

    @property
    @abstractmethod
    def num_events(self) -> int: ...


class SharedEdge(Edge):
    """On one host, through memory."""

    def __init__(self, mailbox: SharedMailbox) -> None:
        self._mailbox = mailbox

    def send(self, x: torch.Tensor) -> None:
        self._mailbox.put(x)

    def receive(self, x: torch.Tensor) -> None:
        self._mailbox.take(x)

    @property
    def waited_s(self) -> float:
        return self._mailbox.waited_s

    @property
    def num_events(self) -> int:
        return self._mailbox.num_letters


class DistributedEdge(Edge):
    """Through torch.distributed; this rank has `own` group of two for each of its edges, and is one of it."""

    def __init__(self, group: Distributed) -> None:
        self._group = group

    def send(self, x: torch.Tensor) -> None:
        self._group.send(x, 1)

    def receive(self, x: torch.Tensor) -> None:
        self._group.receive(x, 0)

    @property
    def waited_s(self) -> float:
        return self._group.waited_s

    @property
    def num_events(self) -> int:
        return self._group.num_events


class Ring:
    """`onward` leads to the next stage, `inward` comes from the one before."""

    def __init__(self, onward: Edge, inward: Edge) -> None:
        self._onward, self._inward = onward, inward

    def send(self, x: torch.Tensor) -> None:
        self._onward.send(x.contiguous())

    def receive(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        x = torch.empty(shape, dtype=dtype, device=device)
        self._inward.receive(x)
        return x

    @property
    def waited_s(self) -> float:
        return self._onward.waited_s + self._inward.waited_s

    @property
    def num_events(self) -> int:
        return self._onward.num_events + self._inward.num_events
