"""The decoder's operations as native kernels, on CPUs that multiply bf16.

One call does what takes torch five to ten, and attention reads the blocks where they lie instead of
gathering them. Shapes as in `workers/model/operations.py`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from workers.model.batch import Batch
from workers.model.config import ModelConfig
from workers.model.native import library

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}


@dataclass(frozen=True, slots=True)
class Plan:
    """`chunks` [n, 4]: first row, number of queries, first position, first of its `blocks`."""

    chunks: torch.Tensor
    blocks: torch.Tensor


def supports(config: ModelConfig, block_tokens: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels can run this model here: their vectors take whole rows of 16 numbers."""
    num_rotated = [2 * len(layer.rope.inverse_frequencies) for layer in config.layers]
    return (
        device.type == "cpu"
        and dtype is torch.bfloat16
        and block_tokens % 16 == 0
        and config.head_dim % 32 == 0
        and all(size % 16 == 0 for size in (config.hidden_size, config.intermediate_size, *num_rotated))
        and library.load() is not None
    )


class NativeOperations:
    """See `Operations`. Tensors are contiguous but where it says view."""

    def __init__(self, config: ModelConfig, block_tokens: int) -> None:
        loaded = library.load()
        assert loaded is not None, "ask `supports` first"
        self._library: ctypes.CDLL = loaded
        self._config = config
        self._block_tokens = block_tokens

    def plan(self, batch: Batch) -> Plan:
        rows: list[tuple[int, int, int, int]] = []
        blocks: list[int] = []
        row = 0
        for chunk in batch.chunks:
            rows.append((row, len(chunk.token_ids), chunk.start, len(blocks)))
            blocks += chunk.block_table[: -(-chunk.end // self._block_tokens)]
            row += len(chunk.token_ids)
        return Plan(torch.tensor(rows, dtype=torch.int32), torch.tensor(blocks, dtype=torch.int32))

    def norm(self, x_TE: torch.Tensor, weight_E: torch.Tensor) -> torch.Tensor:
        out_TE = torch.empty_like(x_TE)
        rows, size = x_TE.shape
        self._library.headrace_norm(
            out_TE.data_ptr(),
            x_TE.data_ptr(),
            weight_E.data_ptr(),
            rows,
            size,
            self._config.norm_eps,
            _threads(),
        )
        return out_TE

    def add_norm(self, residual_TE: torch.Tensor, x_TE: torch.Tensor, weight_E: torch.Tensor) -> torch.Tensor:
        out_TE = torch.empty_like(residual_TE)
        rows, size = residual_TE.shape
        self._library.headrace_add_norm(
            out_TE.data_ptr(),
            residual_TE.data_ptr(),
            x_TE.data_ptr(),
            weight_E.data_ptr(),
            rows,
            size,
            self._config.norm_eps,
            _threads(),
        )
        return out_TE

    def norm_heads(self, heads_THD: torch.Tensor, weight_D: torch.Tensor) -> None:
        rows, heads, dim = heads_THD.shape
        self._library.headrace_norm_heads(
            heads_THD.data_ptr(),
            weight_D.data_ptr(),
            rows,
            heads_THD.stride(0),
            heads,
            dim,
            self._config.norm_eps,
            _threads(),
        )

    def gate(self, gate_up_T2M: torch.Tensor) -> torch.Tensor:
        rows, size = len(gate_up_T2M), self._config.intermediate_size
        out_TM = gate_up_T2M.new_empty(rows, size)
        activation = ACTIVATIONS[self._config.activation]
        self._library.headrace_gate(
            out_TM.data_ptr(), gate_up_T2M.data_ptr(), rows, size, activation, _threads()
        )
        return out_TM

    def rotate_store(
        self, qkv_THD: torch.Tensor, kv_2HNSD: torch.Tensor, turns_XP: torch.Tensor, batch: Batch
    ) -> None:
        config = self._config
        self._library.headrace_rotate_store(
            qkv_THD.data_ptr(),
            kv_2HNSD.data_ptr(),
            turns_XP.data_ptr(),
            batch.positions.data_ptr(),
            batch.slots.data_ptr(),
            len(qkv_THD),
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            turns_XP.shape[1],
            kv_2HNSD.shape[2] * self._block_tokens,
            _threads(),
        )

    def attend(
        self, qkv_THD: torch.Tensor, kv_2HNSD: torch.Tensor, plan: Plan, window: int | None
    ) -> torch.Tensor:
        config = self._config
        out_TE = qkv_THD.new_zeros(len(qkv_THD), config.num_heads * config.head_dim)
        self._library.headrace_attend(
            out_TE.data_ptr(),
            qkv_THD.data_ptr(),
            kv_2HNSD.data_ptr(),
            plan.chunks.data_ptr(),
            len(plan.chunks),
            plan.blocks.data_ptr(),
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            self._block_tokens,
            kv_2HNSD.shape[2],
            window or 0,
            config.attention_scale,
            _threads(),
        )
        return out_TE


def _threads() -> int:
    return torch.get_num_threads()
