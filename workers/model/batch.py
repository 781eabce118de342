"""The inputs of one forward step, laid out once for all layers.

Rows are tokens. Sequences that bring one token each are sorted by length and attend in groups of like
length, padded to the longest; a longer chunk is a group of its own, cut into tiles of queries so that its
scores stay small. Keys are always padded to a multiple of 32 tokens: with that, and with at least two rows,
every row's result is bit for bit the same whatever else is in the step (docs/design/engine.md).

Shapes: T rows, B sequences of a group, Q queries of each, S keys, H KV heads, G query heads per KV head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

KEY_MULTIPLE = 32
TILE_QUERIES = 64
SMALL_KEYS = 256  # below this, padding costs less than one more group

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
class Tile:
    """Rows `first` .. `last` of the step attend to the first `num_keys` keys of their group.

    `biases` has for every window of the model 0 where a query sees a key and -inf where not,
    [H·B or 1, Q·G or 1, S].
    """

    first: int
    last: int
    num_keys: int
    biases: dict[int | None, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Group:
    """B sequences whose keys are gathered together: `blocks` [B · blocks of each]."""

    num_sequences: int
    blocks: torch.Tensor
    tiles: list[Tile]


@dataclass(frozen=True, slots=True)
class Layout:
    """What the model's shape and the cache's shape say about every batch."""

    num_kv_heads: int
    group_size: int  # query heads per KV head
    windows: frozenset[int | None]
    block_tokens: int
    dtype: torch.dtype
    device: torch.device

    @property
    def key_multiple(self) -> int:
        return math.lcm(KEY_MULTIPLE, self.block_tokens)


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. `wanted` are the rows of which the hidden state is asked for, in the order of the chunks."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    groups: list[Group]
    wanted: torch.Tensor

    @classmethod
    def build(cls, chunks: Sequence[Chunk], layout: Layout, min_rows: int) -> Batch:
        """Lay out `chunks`; rows that fill up to `min_rows` write into the null block."""
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
            slots += _slots(chunk, layout.block_tokens)
        padding = [0] * max(min_rows - len(token_ids), 0)
        device = layout.device
        return cls(
            token_ids=torch.tensor(token_ids + padding, device=device),
            positions=torch.tensor(positions + padding, device=device),
            slots=torch.tensor(slots + padding, device=device),
            groups=[_group(part, first, layout) for part, first in _parts([chunks[i] for i in order])],
            wanted=torch.tensor(_wanted(chunks, first_rows), dtype=torch.long, device=device),
        )


def _slots(chunk: Chunk, block_tokens: int) -> Iterable[int]:
    table = chunk.block_table
    if len(chunk.token_ids) == 1:
        block, offset = divmod(chunk.start, block_tokens)
        return (table[block] * block_tokens + offset,)
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


def _parts(chunks: list[Chunk]) -> Iterable[tuple[list[Chunk], int]]:
    """Runs of sorted chunks that form a group, each with the row at which it starts."""
    row = 0
    part: list[Chunk] = []
    for chunk in chunks:
        is_alike = part and len(chunk.token_ids) == 1 and chunk.end <= max(2 * part[0].end, SMALL_KEYS)
        if part and not is_alike:
            yield part, row
            row += sum(len(member.token_ids) for member in part)
            part = []
        part.append(chunk)
    if part:
        yield part, row


def _group(part: list[Chunk], first: int, layout: Layout) -> Group:
    num_keys = _padded(max(chunk.end for chunk in part), layout)
    num_blocks = num_keys // layout.block_tokens
    blocks: list[int] = []
    for chunk in part:
        table = chunk.block_table[:num_blocks]
        blocks += table
        blocks += [0] * (num_blocks - len(table))
    if len(part[0].token_ids) == 1:
        tiles = [_decode_tile(part, first, num_keys, layout)]
    else:
        tiles = [
            _prompt_tile(part[0], first, offset, layout)
            for offset in range(0, len(part[0].token_ids), TILE_QUERIES)
        ]
    return Group(len(part), torch.tensor(blocks, device=layout.device), tiles)


def _decode_tile(part: list[Chunk], first: int, num_keys: int, layout: Layout) -> Tile:
    """One query of each sequence: the mask differs by sequence and is the same for all heads."""
    positions_B1 = torch.tensor([[chunk.start] for chunk in part], device=layout.device)
    biases = {
        window: _bias(positions_B1, num_keys, window, layout).repeat(layout.num_kv_heads, 1).unsqueeze(1)
        for window in layout.windows
    }
    return Tile(first, first + len(part), num_keys, biases)


def _prompt_tile(chunk: Chunk, first: int, offset: int, layout: Layout) -> Tile:
    """Consecutive queries of one sequence, which see no keys past the last of them."""
    count = min(TILE_QUERIES, len(chunk.token_ids) - offset)
    start = chunk.start + offset
    num_keys = _padded(start + count, layout)
    positions_Q1 = torch.arange(start, start + count, device=layout.device).unsqueeze(1)
    biases = {
        window: _bias(positions_Q1, num_keys, window, layout)
        .repeat_interleave(layout.group_size, dim=0)
        .unsqueeze(0)
        for window in layout.windows
    }
    return Tile(first + offset, first + offset + count, num_keys, biases)


def _bias(positions: torch.Tensor, num_keys: int, window: int | None, layout: Layout) -> torch.Tensor:
    keys_S = torch.arange(num_keys, device=layout.device)
    is_hidden = keys_S > positions
    if window is not None:
        is_hidden |= keys_S <= positions - window
    return torch.zeros(is_hidden.shape, dtype=layout.dtype, device=layout.device).masked_fill_(
        is_hidden, float("-inf")
    )


def _padded(num_keys: int, layout: Layout) -> int:
    multiple = layout.key_multiple
    return -(-num_keys // multiple) * multiple
