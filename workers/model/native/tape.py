"""A forward pass as a list of operations that C carries out in one call: Python's side of `tape.c`.

The structures here are those there, field by field.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

import torch

from workers.errors import GangLost
from workers.model.native import library

NUM_BUFFERS = 10
NO_MEMORY = 1

_INT, _FLOAT, _POINTER = ctypes.c_int32, ctypes.c_float, ctypes.c_void_p


class Code(IntEnum):
    EMBED, GATHER, NORM, ADD_NORM, NORM_HEADS, QUANTISE, LINEAR, ROTATE_STORE, ATTEND = range(9)
    REDUCE, ADD = range(9, 11)


class Rows(IntEnum):
    """Which rows of the step an operation computes."""

    ALL, WANTED = range(2)


class Form(IntEnum):
    """What becomes of a product: bf16, bf16 of activation(gate) · up, or fp32."""

    BF16, GATED, FP32 = range(3)


class Op(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("code", "rows", "out", "in_", "base")),
        *((name, _INT) for name in ("size", "inputs", "format", "form", "activation", "heads", "first")),
        *((name, _INT) for name in ("layer", "pairs", "window")),
        ("value", _FLOAT),
        ("weight", _POINTER),
        ("bias", _POINTER),
    )


class Shape(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("q_heads", "kv_heads", "dim", "block_tokens")),
        *((name, _INT) for name in ("kv_number_bytes", "kv_block_bytes")),
        ("attention_scale", _FLOAT),
    )


class Step(ctypes.Structure):
    _fields_ = (
        *((name, _INT) for name in ("num_rows", "num_wanted", "num_chunks", "num_wanted_chunks")),
        *((name, _POINTER) for name in ("tokens", "positions", "slots", "wanted", "blocks")),
        *((name, _POINTER) for name in ("chunks", "wanted_chunks", "layers")),
        ("buffers", _POINTER * NUM_BUFFERS),
    )


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

    def run(self, shape: Shape, step: Step, num_threads: int, exchange: int | None = None) -> None:
        """Carry out every operation; `exchange` is where the lanes meet. Raises MemoryError and GangLost."""
        if self._recorded is None:
            self._recorded = (Op * len(self._ops))(*self._ops)
        assert self._library is not None
        failed = self._library.headrace_run(
            self._recorded,
            len(self._recorded),
            ctypes.byref(shape),
            ctypes.byref(step),
            num_threads,
            exchange,
        )
        if failed == NO_MEMORY:
            raise MemoryError("there is no memory for the tasks of a step")
        if failed:
            raise GangLost("a lane did not come to a sum in time")
