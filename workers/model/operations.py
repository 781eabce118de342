"""What a decoder does besides its linear layers, behind one protocol, so that a device can have its own way.

`torch_operations` runs anywhere; `native/operations` on CPUs that multiply bf16.

Shapes: T rows, E hidden size, M intermediate size, A query heads, H KV heads, D head dimension, N blocks,
S tokens of a block, P rotated pairs.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import torch

from workers.model.batch import Batch

Plan = TypeVar("Plan")


class Operations(Protocol, Generic[Plan]):
    """Every result of a row depends on that row and what it attends to alone, to the last bit."""

    def plan(self, batch: Batch) -> Plan:
        """What attention can work out once for all layers of a step."""
        ...

    def norm(self, x_TE: torch.Tensor, weight_E: torch.Tensor) -> torch.Tensor:
        """RMS norm of each row."""
        ...

    def add_norm(self, residual_TE: torch.Tensor, x_TE: torch.Tensor, weight_E: torch.Tensor) -> torch.Tensor:
        """Add `x_TE` to the residual, in place, and return the norm of that."""
        ...

    def norm_heads(self, heads_THD: torch.Tensor, weight_D: torch.Tensor) -> None:
        """RMS norm of each head, in place; `heads_THD` is a view of some heads of a larger tensor."""
        ...

    def gate(self, gate_up_T2M: torch.Tensor) -> torch.Tensor:
        """activation(gate) · up, [T, M]."""
        ...

    def rotate_store(
        self, qkv_THD: torch.Tensor, kv_2HNSD: torch.Tensor, turns_XP: torch.Tensor, batch: Batch
    ) -> None:
        """Turn the q and k heads by their position, in place, and put k and v into their slots.

        `qkv_THD` has A + 2H heads; `turns_XP` the complex number for each pair at each position.
        """
        ...

    def attend(
        self, qkv_THD: torch.Tensor, kv_2HNSD: torch.Tensor, plan: Plan, window: int | None
    ) -> torch.Tensor:
        """What each row's query heads take from the tokens they see, [T, A·D]."""
        ...
