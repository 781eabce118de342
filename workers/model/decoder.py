"""What a decoder does: token ids in, hidden states of the wanted rows and their logits out.

There are two: `native/decoder.py` runs on CPUs that multiply bf16, `torch_decoder.py` anywhere.
Shapes: R wanted rows, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from workers.model.batch import Chunk
from workers.model.cache import KvCache
from workers.model.config import ModelConfig


class Decoder(Protocol):
    """Every result of a row depends on that row and what it attends to alone, to the last bit."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def kv_dtypes(self) -> tuple[torch.dtype, ...]:
        """Types of numbers that its KV cache may hold, its own first."""
        ...

    @property
    def min_rows(self) -> int:
        """Fewer tokens than that are computed as if they were so many."""
        ...

    def new_cache(self, memory_bytes: int, block_tokens: int, dtype: torch.dtype) -> KvCache:
        """A KV cache of so many bytes in all. Raises ConfigError if it holds next to nothing."""
        ...

    def forward(
        self, chunks: Sequence[Chunk], cache: KvCache, entering_TE: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the chunks' tokens, write their keys and values, return the wanted rows' hidden states.

        [R, E] after the final norm, in the order of the chunks and of the tokens in them. A pipeline stage
        that is not the first takes what the one before returned, at least `min_rows` rows; one that is not
        the last returns all of its rows, for the next.
        """
        ...

    def logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """The fp32 logits [R, V] of hidden states that `forward` returned; good until the next call."""
        ...
