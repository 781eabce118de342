"""The decoder in torch, for any device and type.

Shapes: T rows, R wanted rows, E hidden size, V vocabulary, H heads, D head dimension, P rotated pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from workers.model.batch import Batch, Chunk
from workers.model.cache import KvCache
from workers.model.config import LayerConfig
from workers.model.lanes import Lanes
from workers.model.linear import Linear
from workers.model.parts import Part
from workers.model.rotation import turns
from workers.model.torch_operations import Group, TorchOperations
from workers.model.weights import DecoderWeights, LayerWeights


class TorchDecoder:
    """See `Decoder`. Runs on the device and in the type of its weights."""

    def __init__(self, part: Part, weights: DecoderWeights, lanes: Lanes | None = None) -> None:
        config = self.config = part.config
        self._part = part
        self._lanes = lanes
        self._embedding_VE = weights.embedding_VE
        self._layers = [layer.packed(Linear) for layer in weights.layers]
        self._norm_E = weights.norm_E
        self._head = None if weights.head is None else Linear(weights.head)
        self._turns = {
            rope: turns(rope, config.max_context_tokens).to(self.device)
            for rope in {layer.rope for layer in config.layers}
        }
        self._operations = TorchOperations(config, self.dtype, self.device)
        # With one row oneDNN sums in another order than with more; two rows cost the same.
        self.min_rows = 2 if self.device.type == "cpu" else 1

    @property
    def dtype(self) -> torch.dtype:
        return self._layers[0].attention_norm_E.dtype

    @property
    def device(self) -> torch.device:
        return self._layers[0].attention_norm_E.device

    @property
    def kv_dtypes(self) -> tuple[torch.dtype, ...]:
        return (self.dtype,)

    def new_cache(self, memory_bytes: int, block_tokens: int, dtype: torch.dtype) -> KvCache:
        return KvCache.sized(self.config, memory_bytes, block_tokens, dtype, self.device)

    def forward(
        self, chunks: Sequence[Chunk], cache: KvCache, entering_TE: torch.Tensor | None = None
    ) -> torch.Tensor:
        layers, operations, lanes = self._layers, self._operations, self._lanes
        batch = Batch.build(chunks, cache.block_tokens, self.min_rows, self.device)
        plan = operations.plan(batch, cache.block_tokens)
        residual_TE = self._embedded(batch.token_ids) if entering_TE is None else entering_TE
        x_TE = operations.norm(residual_TE, layers[0].attention_norm_E)
        next_norms = [layer.attention_norm_E for layer in layers[1:]] + [self._norm_E]
        for layer, spec, kv, norm_E in zip(layers, self.config.layers, cache.layers, next_norms, strict=True):
            mixed_TE = self._attention(layer, spec, x_TE, kv, batch, plan)
            if lanes is not None:
                lanes.reduce(mixed_TE)
            if layer.after_attention_norm_E is not None:
                mixed_TE = operations.norm(mixed_TE, layer.after_attention_norm_E)
            x_TE = operations.add_norm(residual_TE, mixed_TE, layer.mlp_norm_E)
            mixed_TE = layer.down(operations.gate(layer.gate_up(x_TE)))
            if lanes is not None:
                lanes.reduce(mixed_TE)
            if layer.after_mlp_norm_E is not None:
                mixed_TE = operations.norm(mixed_TE, layer.after_mlp_norm_E)
            if norm_E is None:  # the last layer of a stage that is not the last
                return residual_TE.add_(mixed_TE)
            x_TE = operations.add_norm(residual_TE, mixed_TE, norm_E)
        return x_TE.index_select(0, batch.wanted)

    def logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        assert self._head is not None
        rows = hidden_RE.shape[0]
        if 0 < rows < self.min_rows:
            hidden_RE = hidden_RE.expand(self.min_rows, -1)
        return self._head(hidden_RE)[:rows].float()

    def _embedded(self, token_ids: torch.Tensor) -> torch.Tensor:
        assert self._embedding_VE is not None
        if self._lanes is None:
            residual_TE = F.embedding(token_ids, self._embedding_VE)
        else:  # each lane knows some of the tokens, and one lane every token
            vocabulary = self._part.vocabulary
            is_known_T1 = ((token_ids >= vocabulary.first) & (token_ids < vocabulary.last)).unsqueeze(1)
            rows = (token_ids - vocabulary.first).clamp(0, vocabulary.size - 1)
            residual_TE = torch.where(is_known_T1, F.embedding(rows, self._embedding_VE), 0.0)
            self._lanes.reduce(residual_TE)
        if self.config.embedding_scale != 1.0:
            residual_TE *= torch.tensor(self.config.embedding_scale, dtype=self.dtype, device=self.device)
        return residual_TE

    def _attention(
        self,
        layer: LayerWeights[Linear],
        spec: LayerConfig,
        x_TE: torch.Tensor,
        kv_N2HSD: torch.Tensor,
        batch: Batch,
        plan: list[Group],
    ) -> torch.Tensor:
        operations = self._operations
        num_q, num_kv = self.config.num_heads, self.config.num_kv_heads
        qkv_THD = layer.qkv(x_TE).view(len(x_TE), num_q + 2 * num_kv, self.config.head_dim)
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            operations.norm_heads(qkv_THD[:, :num_q], layer.q_norm_D)
            operations.norm_heads(qkv_THD[:, num_q : num_q + num_kv], layer.k_norm_D)
        operations.rotate_store(qkv_THD, kv_N2HSD, self._turns[spec.rope], batch)
        return layer.output(operations.attend(qkv_THD, kv_N2HSD, plan, spec.window))
