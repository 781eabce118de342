"""The one decoder implementation: token ids in, hidden states of the wanted rows out.

Weights are in final form when they come here (`workers/load/assembly.py`): projections that share an input
are one matrix, norms have their offset added, and the two halves that rotary embedding pairs are
interleaved, so that turning a pair is one complex multiplication.

Shapes: T rows, R wanted rows, E hidden size, V vocabulary, H heads, D head dimension, X positions, P
rotated pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from workers.model.batch import Batch, Chunk
from workers.model.cache import KvCache
from workers.model.config import LayerConfig, ModelConfig, Rope
from workers.model.linear import Linear
from workers.model.native import operations as native
from workers.model.operations import Operations
from workers.model.torch_operations import TorchOperations


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
    """Runs on the device and in the type of its weights."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config = config
        self._weights = weights
        self.dtype = weights.embedding_VE.dtype
        self.device = weights.embedding_VE.device
        self._turns = {
            rope: _turns(rope, config.max_context_tokens, self.device)
            for rope in {layer.rope for layer in config.layers}
        }
        # With one row oneDNN sums in another order than with more; two rows cost the same.
        self._min_rows = 2 if self.device.type == "cpu" else 1

    def operations(self, block_tokens: int, *, native_kernels: bool = True) -> Operations[Any]:
        """The fastest operations there are for this model here."""
        if native_kernels and native.supports(self.config, block_tokens, self.dtype, self.device):
            return native.NativeOperations(self.config, block_tokens)
        return TorchOperations(self.config, block_tokens, self.dtype, self.device)

    def forward(self, chunks: Sequence[Chunk], cache: KvCache, operations: Operations[Any]) -> torch.Tensor:
        """Compute the chunks' tokens, write their keys and values, return the wanted rows' hidden states.

        [R, E] after the final norm, in the order of the chunks and of the tokens in them.
        """
        weights, layers = self._weights, self._weights.layers
        batch = Batch.build(chunks, cache.block_tokens, self._min_rows, self.device)
        plan = operations.plan(batch)
        residual_TE = F.embedding(batch.token_ids, weights.embedding_VE)
        if self.config.embedding_scale != 1.0:
            residual_TE *= torch.tensor(self.config.embedding_scale, dtype=self.dtype, device=self.device)
        x_TE = operations.norm(residual_TE, layers[0].attention_norm_E)
        next_norms = [layer.attention_norm_E for layer in layers[1:]] + [weights.norm_E]
        for layer, spec, kv, norm_E in zip(layers, self.config.layers, cache.layers, next_norms, strict=True):
            mixed_TE = self._attention(layer, spec, x_TE, kv, batch, plan, operations)
            if layer.after_attention_norm_E is not None:
                mixed_TE = operations.norm(mixed_TE, layer.after_attention_norm_E)
            x_TE = operations.add_norm(residual_TE, mixed_TE, layer.mlp_norm_E)
            mixed_TE = layer.down(operations.gate(layer.gate_up(x_TE)))
            if layer.after_mlp_norm_E is not None:
                mixed_TE = operations.norm(mixed_TE, layer.after_mlp_norm_E)
            x_TE = operations.add_norm(residual_TE, mixed_TE, norm_E)
        return x_TE.index_select(0, batch.wanted)

    def logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """The fp32 logits [R, V] of hidden states that `forward` returned."""
        rows = hidden_RE.shape[0]
        if 0 < rows < self._min_rows:
            hidden_RE = hidden_RE.expand(self._min_rows, -1)
        return self._weights.head(hidden_RE)[:rows].float()

    def _attention(
        self,
        layer: LayerWeights,
        spec: LayerConfig,
        x_TE: torch.Tensor,
        kv_2HNSD: torch.Tensor,
        batch: Batch,
        plan: Any,
        operations: Operations[Any],
    ) -> torch.Tensor:
        num_q, num_kv = self.config.num_heads, self.config.num_kv_heads
        qkv_THD = layer.qkv(x_TE).view(len(x_TE), num_q + 2 * num_kv, self.config.head_dim)
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            operations.norm_heads(qkv_THD[:, :num_q], layer.q_norm_D)
            operations.norm_heads(qkv_THD[:, num_q : num_q + num_kv], layer.k_norm_D)
        operations.rotate_store(qkv_THD, kv_2HNSD, self._turns[spec.rope], batch)
        return layer.output(operations.attend(qkv_THD, kv_2HNSD, plan, spec.window))


def _turns(rope: Rope, num_positions: int, device: torch.device) -> torch.Tensor:
    """The complex number by which each pair is multiplied at each position, [X, P]."""
    frequencies_P = torch.tensor(rope.inverse_frequencies, dtype=torch.float32)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies_P)
    return torch.polar(torch.full_like(angles, rope.scaling), angles).to(device)
