"""Memory for what every step reads from end to end.

In huge pages where the system has them: a decode step walks through all weights, and with pages of 4 KiB the
look-ups of their addresses cost a fifth of the memory's speed (docs/design/kernels.md).
"""

from __future__ import annotations

import math
import mmap

import torch

HUGE_PAGE = 2 << 20
REGION_BYTES = 64 << 20
ALIGNMENT = 64  # of each tensor: a cache line, and a vector


class Arena:
    """Hands out tensors from large regions; a region lives as long as any tensor in it."""

    def __init__(self) -> None:
        self._region = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor, all zeros."""
        size = math.prod(shape) * dtype.itemsize
        if self._used + size > len(self._region):
            self._region, self._used = _region(max(size, REGION_BYTES)), 0
        part = self._region[self._used : self._used + size]
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return part.view(dtype).view(shape)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same numbers in this arena, contiguous."""
        return self.tensor(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def _region(size: int) -> torch.Tensor:
    size = -(-size // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    everything = torch.frombuffer(memory, dtype=torch.uint8)
    first = -everything.data_ptr() % HUGE_PAGE
    return everything[first : first + size]
