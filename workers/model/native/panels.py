"""Projections in the layouts of `bf16.h` and `grouped.h`.

Shapes: O outputs and I inputs of a projection, P panels of 32 outputs, G groups of 32 inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import torch
import torch.nn.functional as F

from workers.model.arena import Arena
from workers.model.weights import Projection

PANEL, LANES, GROUP = 32, 16, 32
Bits = Literal[16, 8, 4]


class Format(IntEnum):
    """Of the weights: bf16, or 8 or 4 bits with a scale per group, and a least value if that is needed."""

    BF16, INT8, INT4, INT4_LEAST = range(4)


@dataclass(frozen=True, slots=True)
class Panels:
    """A packed projection; the bias is in the order of the panels."""

    format: Format
    inputs: int
    outputs: int
    weight: torch.Tensor
    bias: torch.Tensor | None


def pack(projection: Projection, bits: Bits, arena: Arena, *, is_gated: bool = False) -> Panels:
    """`is_gated`: the projection's rows are those of gate, then of up."""
    num_rows, num_inputs = projection.weight_OI.shape
    rows_OI = _ordered(projection.weight_OI, is_gated)
    if bits == 16:
        format_, packed = Format.BF16, _in_pairs(rows_OI)
    else:
        quantised = quantise(rows_OI.float(), bits)
        format_, packed = quantised.format, _in_records(quantised)
    bias = projection.bias_O
    return Panels(
        format_,
        num_inputs,
        num_rows // 2 if is_gated else num_rows,
        arena.copy(packed),
        None if bias is None else arena.copy(_ordered(bias.bfloat16().unsqueeze(1), is_gated).flatten()),
    )


def _ordered(rows_OI: torch.Tensor, is_gated: bool) -> torch.Tensor:
    """Rows as they stand in the panels, padded with zeros; gated: 16 of the gate, then their 16 of up."""
    halves = rows_OI.chunk(2) if is_gated else (rows_OI,)
    multiple = LANES if is_gated else PANEL
    padding = -halves[0].shape[0] % multiple
    padded = [F.pad(half, (0, 0, 0, padding)) for half in halves]
    return torch.stack([half.view(-1, multiple, half.shape[1]) for half in padded], 1).flatten(0, 2)


def _in_pairs(rows_OI: torch.Tensor) -> torch.Tensor:
    """[P, I / 2, 2, 16, 2]."""
    return rows_OI.view(-1, 2, LANES, rows_OI.shape[1] // 2, 2).permute(0, 3, 1, 2, 4)


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight is scale · (q - zero), or scale · q + least; q [O, G, 32] is unsigned, the others [O, G]."""

    format: Format
    q: torch.Tensor
    scale: torch.Tensor
    least: torch.Tensor | None


def quantise(rows_OI: torch.Tensor, bits: Literal[8, 4]) -> Quantised:
    """Each group of 32 inputs by itself. Weights that were once GGUF's Q8_0, Q4_0 or Q4_1 stay what they are.

    Four bits are symmetric where that loses nothing, as of Q4_0, and else spread from the least weight of the
    group to the greatest, as in Q4_1.
    """
    groups_OGI = rows_OI.view(len(rows_OI), -1, GROUP)
    if bits == 8:
        scale = _half(groups_OGI.abs().amax(-1) / 127)
        return Quantised(Format.INT8, _rounded(groups_OGI, scale, 128, 255), scale, None)
    extreme = groups_OGI.gather(-1, groups_OGI.abs().argmax(-1, keepdim=True)).squeeze(-1)
    scale = _half(extreme / -8)
    q = _rounded(groups_OGI, scale, 8, 15)
    error = (scale.float().unsqueeze(-1) * (q.float() - 8) - groups_OGI).abs().amax()
    if error <= 1e-6 * extreme.abs().amax():
        return Quantised(Format.INT4, q, scale, None)
    least = _half(groups_OGI.amin(-1))
    scale = _half((groups_OGI.amax(-1) - groups_OGI.amin(-1)) / 15)
    q = _rounded(groups_OGI - least.float().unsqueeze(-1), scale, 0, 15)
    return Quantised(Format.INT4_LEAST, q, scale, least)


def _half(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.to(torch.float16)


def _rounded(groups_OGI: torch.Tensor, scale_OG: torch.Tensor, zero: int, greatest: int) -> torch.Tensor:
    scale = scale_OG.float().unsqueeze(-1)
    steps = torch.where(scale != 0, groups_OGI / scale, 0.0)
    return (steps.round() + zero).clamp(0, greatest).to(torch.uint8)


def _in_records(quantised: Quantised) -> torch.Tensor:
    """[P, G, bytes of a record]: the scales, the leasts if there are, q as [8][2][16][4]."""
    num_groups = quantised.q.shape[1]
    data = quantised.q.view(-1, 2, LANES, num_groups, 8, 4).permute(0, 3, 4, 1, 2, 5)
    if quantised.format is not Format.INT8:
        data = data[:, :, :4] | data[:, :, 4:] << 4
    parts = [_of_panels(quantised.scale), data.flatten(2)]
    if quantised.least is not None:
        parts.insert(1, _of_panels(quantised.least))
    return torch.cat(parts, dim=-1)


def _of_panels(halves_OG: torch.Tensor) -> torch.Tensor:
    """Bytes [P, G, 64]."""
    ordered = halves_OG.view(-1, PANEL, halves_OG.shape[1]).transpose(1, 2).contiguous()
    return ordered.view(torch.uint8)
