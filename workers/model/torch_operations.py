"""What a decoder does besides its linear layers, in torch, for any device and type.

Attention gathers keys and values of a group of sequences, then does two batched products. The query heads
that share a KV head are folded into the query axis, so that each KV head is one product and is never
repeated in memory; on a CPU this is 4 to 13 times as fast as torch's fused attention at one query per
sequence. Keys are padded to a multiple of 64 tokens: with that, and at least two rows in a step, a row's
result is bit for bit the same whatever else is in the step (docs/design/engine.md).

Shapes: T rows, E hidden size, M intermediate size, A query heads, H KV heads, D head dimension, N blocks,
S tokens of a block, P rotated pairs; B sequences of a group, Q queries of each, G query heads per KV head,
K keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from workers.model.batch import Batch, Chunk
from workers.model.config import ModelConfig

KEY_MULTIPLE = 64  # a multiple of every block size, too
TILE_QUERIES = 64
SMALL_KEYS = 256  # below this, padding costs less than one more group


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows `first` .. `last` of the step attend to the first `num_keys` keys of their group.

    `biases` has for every window of the model 0 where a query sees a key and -inf where not,
    [H·B or 1, Q·G or 1, K].
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


class TorchOperations:
    """Of one model on one device."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        self._group_size = config.num_heads // config.num_kv_heads
        self._windows = {layer.window for layer in config.layers}
        self._dtype = dtype
        self._device = device

    def norm(self, x_TE: torch.Tensor, weight_E: torch.Tensor) -> torch.Tensor:
        """RMS norm of each row."""
        return F.rms_norm(x_TE, weight_E.shape, weight_E, self._config.norm_eps)

    def add_norm(self, residual_TE: torch.Tensor, x_TE: torch.Tensor, weight_E: torch.Tensor) -> torch.Tensor:
        """Add `x_TE` to the residual, in place, and return the norm of that."""
        return self.norm(residual_TE.add_(x_TE), weight_E)

    def norm_heads(self, heads_THD: torch.Tensor, weight_D: torch.Tensor) -> None:
        """RMS norm of each head, in place; `heads_THD` is a view of some heads of a larger tensor."""
        heads_THD.copy_(self.norm(heads_THD, weight_D))

    def gate(self, gate_up_T2M: torch.Tensor) -> torch.Tensor:
        """activation(gate) · up, [T, M]."""
        gate_TM, up_TM = gate_up_T2M.chunk(2, dim=-1)
        if self._config.activation == "silu":
            return F.silu(gate_TM) * up_TM
        return F.gelu(gate_TM, approximate="tanh") * up_TM

    def rotate_store(
        self, qkv_THD: torch.Tensor, kv_N2HSD: torch.Tensor, turns_XP: torch.Tensor, batch: Batch
    ) -> None:
        """Turn the q and k heads by their position, in place, and put k and v into their slots.

        `qkv_THD` has A + 2H heads; `turns_XP` the complex number for each pair at each position.
        """
        num_q, num_kv = self._config.num_heads, self._config.num_kv_heads
        turns_T1P = turns_XP.index_select(0, batch.positions).unsqueeze(1)
        rotated_THR = qkv_THD[:, : num_q + num_kv, : 2 * turns_XP.shape[-1]]
        pairs_THP = torch.view_as_complex(rotated_THR.float().reshape(*rotated_THR.shape[:-1], -1, 2))
        rotated_THR.copy_(torch.view_as_real(pairs_THP * turns_T1P).flatten(-2))
        block_tokens = kv_N2HSD.shape[3]
        blocks_T, places_T = batch.slots // block_tokens, batch.slots % block_tokens
        kv_T2HD = qkv_THD[:, num_q:].view(len(qkv_THD), 2, num_kv, -1)
        kv_N2HSD[blocks_T, :, :, places_T] = kv_T2HD

    def attend(
        self, qkv_THD: torch.Tensor, kv_N2HSD: torch.Tensor, plan: list[Group], window: int | None
    ) -> torch.Tensor:
        """What each row's query heads take from the tokens they see, [T, A·D]."""
        config = self._config
        shape = (len(qkv_THD), config.num_kv_heads, self._group_size, config.head_dim)
        queries_THGD = qkv_THD[:, : config.num_heads].view(shape)
        out_TE = torch.zeros_like(queries_THGD).flatten(1)
        for group in plan:
            keys, values = _gather(kv_N2HSD, group)
            for tile in group.tiles:
                q = _fold(queries_THGD[tile.first : tile.last], group.num_sequences)
                k, v = keys[:, : tile.num_keys], values[:, : tile.num_keys]
                scores = torch.baddbmm(
                    tile.biases[window], q, k.transpose(1, 2), alpha=config.attention_scale
                )
                weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
                out_TE[tile.first : tile.last] = self._unfold(torch.bmm(weights, v), group.num_sequences)
        return out_TE

    def plan(self, batch: Batch, block_tokens: int) -> list[Group]:
        """What attention can work out once for all layers of a step."""
        return [self._group(part, first, block_tokens) for part, first in _parts(batch.chunks)]

    def _unfold(self, mixed: torch.Tensor, num_sequences: int) -> torch.Tensor:
        """[H·B, Q·G, D] to [B·Q, H·G·D]."""
        config = self._config
        split = mixed.view(config.num_kv_heads, num_sequences, -1, self._group_size, config.head_dim)
        return split.permute(1, 2, 0, 3, 4).reshape(-1, config.num_heads * config.head_dim)

    def _group(self, part: list[Chunk], first: int, block_tokens: int) -> Group:
        num_blocks = _padded(max(chunk.end for chunk in part)) // block_tokens
        blocks: list[int] = []
        for chunk in part:
            table = chunk.block_table[:num_blocks]
            blocks += table
            blocks += [0] * (num_blocks - len(table))
        num_tokens = len(part[0].token_ids)
        if num_tokens == 1:
            tiles = [self._decode_tile(part, first)]
        else:
            tiles = [self._prompt_tile(part[0], first, at) for at in range(0, num_tokens, TILE_QUERIES)]
        return Group(len(part), torch.tensor(blocks, device=self._device), tiles)

    def _decode_tile(self, part: list[Chunk], first: int) -> Tile:
        """One query of each sequence: the mask differs by sequence and is the same for all heads."""
        num_keys = _padded(max(chunk.end for chunk in part))
        positions_B1 = torch.tensor([[chunk.start] for chunk in part], device=self._device)
        biases = {
            window: self._bias(positions_B1, num_keys, window)
            .repeat(self._config.num_kv_heads, 1)
            .unsqueeze(1)
            for window in self._windows
        }
        return Tile(first, first + len(part), num_keys, biases)

    def _prompt_tile(self, chunk: Chunk, first: int, offset: int) -> Tile:
        """Consecutive queries of one sequence, which see no keys past the last of them."""
        count = min(TILE_QUERIES, len(chunk.token_ids) - offset)
        start = chunk.start + offset
        num_keys = _padded(start + count)
        positions_Q1 = torch.arange(start, start + count, device=self._device).unsqueeze(1)
        biases = {
            window: self._bias(positions_Q1, num_keys, window)
            .repeat_interleave(self._group_size, dim=0)
            .unsqueeze(0)
            for window in self._windows
        }
        return Tile(first + offset, first + offset + count, num_keys, biases)

    def _bias(self, positions: torch.Tensor, num_keys: int, window: int | None) -> torch.Tensor:
        keys_K = torch.arange(num_keys, device=self._device)
        is_hidden = keys_K > positions
        if window is not None:
            is_hidden |= keys_K <= positions - window
        bias = torch.zeros(is_hidden.shape, dtype=self._dtype, device=self._device)
        return bias.masked_fill_(is_hidden, float("-inf"))


def _padded(num_keys: int) -> int:
    return -(-num_keys // KEY_MULTIPLE) * KEY_MULTIPLE


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


def _gather(kv_N2HSD: torch.Tensor, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the group's sequences, each [H·B, K, D]."""
    runs = kv_N2HSD.index_select(0, group.blocks)
    runs = runs.view(group.num_sequences, -1, *kv_N2HSD.shape[1:])
    both = runs.permute(2, 3, 0, 1, 4, 5).flatten(3, 4).flatten(1, 2)
    return both[0], both[1]


def _fold(queries_THGD: torch.Tensor, num_sequences: int) -> torch.Tensor:
    """[B·Q, H, G, D] to [H·B, Q·G, D]."""
    rows, heads, group_size, dim = queries_THGD.shape
    num_queries = rows // num_sequences
    split = queries_THGD.view(num_sequences, num_queries, heads, group_size, dim).permute(2, 0, 1, 3, 4)
    return split.reshape(heads * num_sequences, num_queries * group_size, dim)
