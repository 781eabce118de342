"""The inputs of one forward step, laid out once for all layers.

Rows are tokens: first those of chunks with a single token, by length of their context, then the longer
chunks. Rows that only fill up the step write into the null block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Rows = Literal["all", "last", "none"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` .. of one sequence; `rows` says for which of them the hidden state is wanted."""

    token_ids: list[int]
    start: int
    block_table: list[int]
    rows: Rows

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. `chunks` are in the order of the rows; `wanted` are the rows of which the hidden state is
    asked for, in the order in which the chunks were given."""

    chunks: list[Chunk]
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    wanted: torch.Tensor

    @classmethod
    def build(cls, chunks: Sequence[Chunk], block_tokens: int, min_rows: int, device: torch.device) -> Batch:
        order = sorted(range(len(chunks)), key=lambda i: (len(chunks[i].token_ids) > 1, chunks[i].end))
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        first_rows = [0] * len(chunks)
        for index in order:
            chunk = chunks[index]
            first_rows[index] = len(token_ids)
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.end)
            slots += _slots(chunk, block_tokens)
        padding = [0] * max(min_rows - len(token_ids), 0)
        return cls(
            chunks=[chunks[index] for index in order],
            token_ids=torch.tensor(token_ids + padding, device=device),
            positions=torch.tensor(positions + padding, device=device),
            slots=torch.tensor(slots + padding, device=device),
            wanted=torch.tensor(_wanted(chunks, first_rows), dtype=torch.long, device=device),
        )


def _slots(chunk: Chunk, block_tokens: int) -> Iterable[int]:
    table = chunk.block_table
    return [
        table[position // block_tokens] * block_tokens + position % block_tokens
        for position in range(chunk.start, chunk.end)
    ]


def _wanted(chunks: Sequence[Chunk], first_rows: list[int]) -> list[int]:
    wanted: list[int] = []
    for chunk, first in zip(chunks, first_rows, strict=True):
        last = first + len(chunk.token_ids)
        if chunk.rows == "all":
            wanted += range(first, last)
        elif chunk.rows == "last":
            wanted.append(last - 1)
    return wanted
