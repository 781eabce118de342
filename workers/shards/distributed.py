"""torch.distributed among ranks, where they share no memory: gloo on CPUs, NCCL on GPUs.

Sums are made in the order of the ranks on CPUs, from what all of them sent: gloo's own sum depends on where a
number lies in the tensor, and so on the batch.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from workers.errors import GangLost

LIMIT_S = 120.0  # a rank that is lost is noticed long before, by its pulse


class Distributed:
    """A process group; every call of one rank meets those of the others in the same order."""

    def __init__(
        self, store: Store, name: str, rank: int, size: int, host: str, device: torch.device
    ) -> None:
        self.rank, self.size = rank, size
        self._is_cuda = device.type == "cuda"
        limit = timedelta(seconds=LIMIT_S)
        prefixed = PrefixStore(name, store)
        group: Any
        if self._is_cuda:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            group = dist.ProcessGroupNCCL(prefixed, rank, size, options)
        else:
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._timeout = limit
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
            group = dist.ProcessGroupGloo(prefixed, rank, size, options)
        self._group = group
        self.waited_s = 0.0
        self.num_events = 0

    def reduce(self, x: torch.Tensor) -> None:
        """x = the sum of every rank's x."""
        if self._is_cuda:
            self._wait(self._group.allreduce([x]))
            return
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._wait(self._group.allgather([parts], [x]))
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        x.copy_(total)

    def send(self, x: torch.Tensor, to: int) -> None:
        self._wait(self._group.send([x], to, 0))

    def receive(self, x: torch.Tensor, from_: int) -> None:
        self._wait(self._group.recv([x], from_, 0))

    def _wait(self, work: Any) -> None:
        started_s = time.monotonic()
        try:
            work.wait()
        except RuntimeError as error:
            raise GangLost(f"a collective failed: {' '.join(str(error).split())[:300]}") from error
        self.waited_s += time.monotonic() - started_s
        self.num_events += 1
