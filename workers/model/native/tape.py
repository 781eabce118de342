"""A forward pass as a list of operations that C carries out in one call: Python's side of `tape.c`.

The structures here are those there, field by field. Shapes: T rows of the step, R wanted rows, E hidden
size, O outputs and I inputs of a projection, P panels of 32 outputs.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

import torch

from workers.model.arena import Arena
from workers.model.native import library
from workers.model.weights import Projection

PANEL, LANES = 32, 16
NUM_BUFFERS = 8

_INT, _FLOAT, _POINTER = ctypes.c_int32, ctypes.c_float, ctypes.c_void_p


class Code(IntEnum):
    EMBED, GATHER, NORM, ADD_NORM, NORM_HEADS, LINEAR, ROTATE_STORE, ATTEND = range(8)


class Rows(IntEnum):
    """Which rows of the step an operation computes."""

    ALL, WANTED = range(2)


class Form(IntEnum):
    """What becomes of a product: bf16, bf16 of activation(gate) · up, or fp32."""

    BF16, GATED, FP32 = range(3)


class Op(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("code", "rows", "out", "in_", "base")),
        *((name, _INT) for name in ("size", "inputs", "form", "activation", "heads", "first")),
        *((name, _INT) for name in ("layer", "pairs", "window")),
        ("value", _FLOAT),
        ("weight", _POINTER),
        ("bias", _POINTER),
    )


class Shape(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("q_heads", "kv_heads", "dim", "block_tokens")),
        ("attention_scale", _FLOAT),
    )


class Step(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("num_rows", "num_wanted", "num_chunks", "num_wanted_chunks")),
        ("num_blocks", ctypes.c_int64),
        *((name, _POINTER) for name in ("tokens", "positions", "slots", "wanted", "blocks")),
        *((name, _POINTER) for name in ("chunks", "wanted_chunks", "layers")),
        ("buffers", _POINTER * NUM_BUFFERS),
    )


class Panels:
    """A projection in the layout of `linear.h`: [P, I / 2, 2, 16, 2], and the bias in the same order."""

    def __init__(self, projection: Projection, arena: Arena, *, is_gated: bool = False) -> None:
        num_rows, self.inputs = projection.weight_OI.shape
        self.outputs = num_rows // 2 if is_gated else num_rows
        self.weight = arena.copy(_panels(projection.weight_OI, is_gated))
        self.bias = None
        if projection.bias_O is not None:
            self.bias = arena.copy(_ordered(projection.bias_O.unsqueeze(1), is_gated).flatten())


def _ordered(rows_OI: torch.Tensor, is_gated: bool) -> torch.Tensor:
    """Rows as they stand in the panels, padded with zeros; gated: 16 of the gate, then their 16 of up."""
    halves = rows_OI.chunk(2) if is_gated else (rows_OI,)
    multiple = LANES if is_gated else PANEL
    padding = -halves[0].shape[0] % multiple
    padded = [torch.nn.functional.pad(half, (0, 0, 0, padding)) for half in halves]
    return torch.stack([half.view(-1, multiple, half.shape[1]) for half in padded], 1).flatten(0, 2)


def _panels(weight_OI: torch.Tensor, is_gated: bool) -> torch.Tensor:
    ordered = _ordered(weight_OI, is_gated)
    return ordered.view(-1, 2, LANES, weight_OI.shape[1] // 2, 2).permute(0, 3, 1, 2, 4)


class Tape:
    """Operations in order; they read the tensors they were given for as long as the tape lives."""

    def __init__(self) -> None:
        self._library = library.load()
        self._ops: list[Op] = []
        self._tensors: list[torch.Tensor] = []
        self._recorded: ctypes.Array[Op] | None = None

    def add(
        self,
        code: Code,
        *,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        **fields: float,
    ) -> None:
        """`fields` are those of `Op`."""
        op = Op(code=code, **fields)
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None:
                assert tensor.is_contiguous()
                setattr(op, name, tensor.data_ptr())
                self._tensors.append(tensor)
        self._ops.append(op)
        self._recorded = None

    def linear(
        self,
        panels: Panels,
        out: int,
        in_: int,
        form: Form = Form.BF16,
        rows: Rows = Rows.ALL,
        activation: int = 0,
    ) -> None:
        self.add(
            Code.LINEAR,
            weight=panels.weight,
            bias=panels.bias,
            out=out,
            in_=in_,
            inputs=panels.inputs,
            size=panels.outputs,
            form=form,
            rows=rows,
            activation=activation,
        )

    def run(self, shape: Shape, step: Step, num_threads: int) -> None:
        """Carry out every operation. Raises MemoryError."""
        if self._recorded is None:
            self._recorded = (Op * len(self._ops))(*self._ops)
        assert self._library is not None
        if self._library.headrace_run(
            self._recorded, len(self._recorded), ctypes.byref(shape), ctypes.byref(step), num_threads
        ):
            raise MemoryError("there is no memory for the tasks of a step")
