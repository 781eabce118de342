"""A model on disk, whatever its format: its configuration, its tensors under our own names, its tokenizer.

The names are those of `workers/model/decoder.py`: embedding.weight, norm.weight, head.weight, and in each
layer `layers.<i>.` followed by

    attention_norm  q k v | qkv  q_norm k_norm  output  after_attention_norm
    mlp_norm  gate up | gate_up  down  after_mlp_norm

with `.weight` or `.bias`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from workers.model.config import ModelConfig
from workers.model.parts import Span


class Checkpoint(Protocol):
    """`is_interleaved` tells how q and k rows pair up for rotary embedding: neighbours (2i, 2i + 1), or
    halves (i, i + P) as in Hugging Face's files."""

    config: ModelConfig
    is_interleaved: bool
    eos_ids: list[int]  # besides the tokenizer's own

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor. Raises ConfigError if there is none."""
        ...

    def tensor(self, name: str, rows: Span | None = None, columns: Span | None = None) -> torch.Tensor:
        """The tensor in a floating type, [out, in] for matrices, or a part of it, of which alone memory is
        taken. Raises ConfigError if there is none."""
        ...

    def tokenizer(self) -> Any:
        """The model's transformers tokenizer, a fast one."""
        ...
