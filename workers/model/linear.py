"""Linear layers, in the form that is fastest for torch where they run.

On a CPU that computes in bf16, oneDNN's own weight layout is 1.3 to 2.2 times as fast as a plain weight
at the few rows of a decode step (docs/design/engine.md), so weights are packed once when loaded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from workers.model.weights import Projection


class Linear:
    """y_TO = x_TI · weight_OI' + bias_O."""

    def __init__(self, projection: Projection) -> None:
        weight_OI = projection.weight_OI
        self._bias = projection.bias_O
        self._is_packed = weight_OI.device.type == "cpu" and weight_OI.dtype is torch.bfloat16
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI) if self._is_packed else weight_OI

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        if self._is_packed:
            packed: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x_TI, self._weight, self._bias, "none", [], ""
            )
            return packed
        return F.linear(x_TI, self._weight, self._bias)


def can_compute_bf16(device: torch.device) -> bool:
    """Whether bf16 is computed in hardware there, or at least not emulated one number at a time."""
    if device.type != "cpu":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
