"""The KV cache's memory: per layer one tensor of blocks, of which the block pool hands out the numbers.

Shapes: N blocks, H key/value heads, S tokens of a block, D head dimension; index 0 is keys, 1 is values.
A block lies in one piece. How a head's S·D numbers are ordered in it is the decoder's own affair. With 8 bits
a block is a row of bytes: its numbers, then an fp16 scale for each token of each head.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property

import torch

from workers.errors import ConfigError
from workers.model.arena import Arena
from workers.model.config import ModelConfig

MIN_BLOCKS = 3  # the null block and two to work with
SCALE_BYTES = 2
MAX_INT8_CONTEXT_TOKENS = 1 << 16  # the products of so many weights and values add up within 32 bits


class KvCache:
    """`layers[i]` is that of layer i, [N, 2, H, S, D], of 8 bits [N, bytes]; block 0 is the null block."""

    def __init__(self, layers: list[torch.Tensor], block_tokens: int) -> None:
        self.layers = layers
        self.block_tokens = block_tokens

    @cached_property
    def addresses(self) -> ctypes.Array[ctypes.c_void_p]:
        """Where each layer's tensor begins in memory."""
        return (ctypes.c_void_p * len(self.layers))(*[layer.data_ptr() for layer in self.layers])

    @property
    def num_blocks(self) -> int:
        """Blocks including the null block."""
        return len(self.layers[0])

    @property
    def number_bytes(self) -> int:
        return self.layers[0].itemsize

    @property
    def block_bytes(self) -> int:
        """Of one block of one layer."""
        return self.layers[0][0].nbytes

    @classmethod
    def sized(
        cls,
        config: ModelConfig,
        memory_bytes: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KvCache:
        """As many blocks as fit into `memory_bytes`; `dtype` is that of the numbers, torch.int8 with scales.

        Raises ConfigError if that is next to none."""
        num_blocks = blocks_in([config], memory_bytes, block_tokens, dtype)
        return cls.of_blocks(config, num_blocks, block_tokens, dtype, device)

    @classmethod
    def of_blocks(
        cls,
        config: ModelConfig,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KvCache:
        """`num_blocks` include the null block."""
        shape: tuple[int, ...] = (num_blocks, 2, config.num_kv_heads, block_tokens, config.head_dim)
        if dtype is torch.int8:
            shape = (num_blocks, _layer_block_bytes(config, block_tokens, dtype))
        if device.type == "cpu":
            arena = Arena()
            return cls([arena.tensor(shape, dtype) for _ in range(config.num_layers)], block_tokens)
        return cls(
            [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)], block_tokens
        )


def blocks_in(
    configs: Sequence[ModelConfig], memory_bytes: int, block_tokens: int, dtype: torch.dtype
) -> int:
    """How many blocks a memory holds that these parts of a model share, a block being in all of them.

    Raises ConfigError if that is next to none."""
    block_bytes = sum(
        config.num_layers * _layer_block_bytes(config, block_tokens, dtype) for config in configs
    )
    num_blocks = memory_bytes // block_bytes
    if num_blocks < MIN_BLOCKS:
        raise ConfigError(
            f"kv.memory of {memory_bytes} bytes holds {num_blocks} blocks of {block_tokens} tokens "
            f"({block_bytes} bytes each), but at least {MIN_BLOCKS} are needed; "
            f"give it {MIN_BLOCKS * block_bytes} bytes or more"
        )
    return num_blocks


def _layer_block_bytes(config: ModelConfig, block_tokens: int, dtype: torch.dtype) -> int:
    head_bytes = config.head_dim * dtype.itemsize + (SCALE_BYTES if dtype is torch.int8 else 0)
    return 2 * config.num_kv_heads * block_tokens * head_bytes
