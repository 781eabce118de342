"""The one decoder implementation: token ids in, hidden states of the wanted rows out.

Weights are in final form when they come here (`workers/load/assembly.py`): projections that share an input
are one matrix, norms have their offset added, and the two halves that rotary embedding pairs are
interleaved, so that turning a pair is one complex multiplication.

Shapes: T rows, R wanted rows, E hidden size, V vocabulary, H KV heads, G query heads per KV head, D head
dimension, P rotated pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from workers.model import attention
from workers.model.batch import Batch, Chunk, Layout
from workers.model.cache import KvCache
from workers.model.config import LayerConfig, ModelConfig, Rope
from workers.model.linear import Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Optional parts are None in the families that do not have them."""

    attention_norm_E: torch.Tensor
    qkv: Linear  # the rows of q, then k, then v
    q_norm_D: torch.Tensor | None
    k_norm_D: torch.Tensor | None
    output: Linear
    after_attention_norm_E: torch.Tensor | None
    mlp_norm_E: torch.Tensor
    gate_up: Linear  # the rows of gate, then up
    down: Linear
    after_mlp_norm_E: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding_VE: torch.Tensor
    layers: list[LayerWeights]
    norm_E: torch.Tensor
    head: Linear


class Decoder:
    """Runs on the device and in the dtype of its weights."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config = config
        self._weights = weights
        self.dtype = weights.embedding_VE.dtype
        self.device = weights.embedding_VE.device
        self._rotations = {
            rope: _rotations(rope, config.max_context_tokens, self.device)
            for rope in {layer.rope for layer in config.layers}
        }
        # With one row oneDNN sums in another order than with more; two rows cost the same.
        self._min_rows = 2 if self.device.type == "cpu" else 1

    def forward(self, chunks: Sequence[Chunk], cache: KvCache) -> torch.Tensor:
        """Compute the chunks' tokens, write their keys and values, return the wanted rows' hidden states.

        [R, E] after the final norm, in the order of the chunks and of the tokens in them.
        """
        config, weights = self.config, self._weights
        batch = Batch.build(chunks, self._layout(cache.block_tokens), self._min_rows)
        hidden_TE = F.embedding(batch.token_ids, weights.embedding_VE)
        if config.embedding_scale != 1.0:
            hidden_TE = hidden_TE * torch.tensor(config.embedding_scale, dtype=self.dtype, device=self.device)
        turns = {
            rope: table.index_select(0, batch.positions).unsqueeze(1)
            for rope, table in self._rotations.items()
        }
        for layer, spec, kv in zip(weights.layers, config.layers, cache.layers, strict=True):
            mixed_TE = self._attention(
                layer, spec, self._norm(hidden_TE, layer.attention_norm_E), kv, batch, turns
            )
            if layer.after_attention_norm_E is not None:
                mixed_TE = self._norm(mixed_TE, layer.after_attention_norm_E)
            hidden_TE = hidden_TE + mixed_TE
            mixed_TE = self._mlp(layer, self._norm(hidden_TE, layer.mlp_norm_E))
            if layer.after_mlp_norm_E is not None:
                mixed_TE = self._norm(mixed_TE, layer.after_mlp_norm_E)
            hidden_TE = hidden_TE + mixed_TE
        return self._norm(hidden_TE.index_select(0, batch.wanted), weights.norm_E)

    def logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """The fp32 logits [R, V] of hidden states that `forward` returned."""
        rows = hidden_RE.shape[0]
        if 0 < rows < self._min_rows:
            hidden_RE = hidden_RE.expand(self._min_rows, -1)
        return self._weights.head(hidden_RE)[:rows].float()

    def _layout(self, block_tokens: int) -> Layout:
        config = self.config
        return Layout(
            num_kv_heads=config.num_kv_heads,
            group_size=config.num_heads // config.num_kv_heads,
            windows=frozenset(layer.window for layer in config.layers),
            block_tokens=block_tokens,
            dtype=self.dtype,
            device=self.device,
        )

    def _norm(self, x_TE: torch.Tensor, weight_E: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_TE, weight_E.shape, weight_E, self.config.norm_eps)

    def _attention(
        self,
        layer: LayerWeights,
        spec: LayerConfig,
        x_TE: torch.Tensor,
        kv_2HNSD: torch.Tensor,
        batch: Batch,
        turns: dict[Rope, torch.Tensor],
    ) -> torch.Tensor:
        config = self.config
        num_q, num_kv, dim = config.num_heads, config.num_kv_heads, config.head_dim
        heads_THD = layer.qkv(x_TE).view(len(x_TE), num_q + 2 * num_kv, dim)
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            heads_THD[:, :num_q] = self._norm(heads_THD[:, :num_q], layer.q_norm_D)
            heads_THD[:, num_q : num_q + num_kv] = self._norm(
                heads_THD[:, num_q : num_q + num_kv], layer.k_norm_D
            )
        _rotate(heads_THD[:, : num_q + num_kv], turns[spec.rope])
        attention.write(
            kv_2HNSD, heads_THD[:, num_q : num_q + num_kv], heads_THD[:, num_q + num_kv :], batch.slots
        )
        queries_THGD = heads_THD[:, :num_q].view(len(x_TE), num_kv, num_q // num_kv, dim)
        mixed_TE = attention.attend(queries_THGD, kv_2HNSD, batch, spec.window, config.attention_scale)
        return layer.output(mixed_TE)

    def _mlp(self, layer: LayerWeights, x_TE: torch.Tensor) -> torch.Tensor:
        gate_TM, up_TM = layer.gate_up(x_TE).chunk(2, dim=-1)
        if self.config.activation == "silu":
            return layer.down(F.silu(gate_TM) * up_TM)
        return layer.down(F.gelu(gate_TM, approximate="tanh") * up_TM)


def _rotations(rope: Rope, num_positions: int, device: torch.device) -> torch.Tensor:
    """The complex number by which each pair is multiplied at each position, [positions, P]."""
    frequencies_P = torch.tensor(rope.inverse_frequencies, dtype=torch.float32)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies_P)
    return torch.polar(torch.full_like(angles, rope.scaling), angles).to(device)


def _rotate(heads_THD: torch.Tensor, turns_T1P: torch.Tensor) -> None:
    """Turn the leading pairs of every head, in place, in fp32."""
    rotated_THR = heads_THD[..., : 2 * turns_T1P.shape[-1]]
    pairs_THP = torch.view_as_complex(rotated_THR.float().reshape(*rotated_THR.shape[:-1], -1, 2))
    rotated_THR.copy_(torch.view_as_real(pairs_THP * turns_T1P).flatten(-2))
