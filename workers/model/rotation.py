"""Rotary embedding's table. Shapes: X positions, P rotated pairs."""

from __future__ import annotations

import torch

from workers.model.config import Rope


def turns(rope: Rope, num_positions: int) -> torch.Tensor:
    """The complex number by which each pair is multiplied at each position, [X, P]."""
    frequencies_P = torch.tensor(rope.inverse_frequencies, dtype=torch.float32)
    angles_XP = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies_P)
    return torch.polar(torch.full_like(angles_XP, rope.scaling), angles_XP)
