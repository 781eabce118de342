"""A decoder's weights as loaded, before a decoder brings them into the layout it computes with.

Weights are in final form when they come here (`workers/load/assembly.py`): projections that share an input
are one matrix, norms have their offset added, and the two halves that rotary embedding pairs are
interleaved, so that turning a pair is one complex multiplication.

Shapes: E hidden size, V vocabulary, D head dimension, O and I outputs and inputs of a projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

import torch

Matrix = TypeVar("Matrix")
Packed = TypeVar("Packed")


@dataclass(frozen=True, slots=True)
class Projection:
    """y_O = weight_OI · x_I + bias_O."""

    weight_OI: torch.Tensor
    bias_O: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[Matrix]):
    """Optional parts are None in the families that do not have them. `Matrix` is what a projection became."""

    attention_norm_E: torch.Tensor
    qkv: Matrix  # the rows of q, then k, then v
    q_norm_D: torch.Tensor | None
    k_norm_D: torch.Tensor | None
    output: Matrix
    after_attention_norm_E: torch.Tensor | None
    mlp_norm_E: torch.Tensor
    gate_up: Matrix  # the rows of gate, then up
    down: Matrix
    after_mlp_norm_E: torch.Tensor | None

    def packed(self, pack: Callable[[Matrix], Packed]) -> LayerWeights[Packed]:
        """The same layer with each projection packed."""
        projections: dict[str, Any] = {
            name: pack(getattr(self, name)) for name in ("qkv", "output", "gate_up", "down")
        }
        return cast("LayerWeights[Packed]", replace(cast("LayerWeights[Any]", self), **projections))


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """`layers` is read once, in order, so that each can be packed and let go before the next is loaded.

    Embedding and head are None in all pipeline stages but the first, the norm in all but the last."""

    embedding_VE: torch.Tensor | None
    layers: Iterable[LayerWeights[Projection]]
    norm_E: torch.Tensor | None
    head: Projection | None
