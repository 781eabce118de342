"""What a decoder needs of the ranks that hold the same layers as it does."""

from __future__ import annotations

from typing import Protocol

import torch


class Lanes(Protocol):
    """Tensor-parallel ranks; `exchange` is their shared memory, as C knows it, or None if they have none."""

    exchange: int | None

    def reduce(self, x: torch.Tensor) -> None:
        """Replace `x` by the sum over all lanes, always in the same order: the same bits on each of them."""
        ...
