"""A checkpoint's tensors, brought into the form the decoder computes with.

Projections that read the same input become one matrix, norms get their offset, and q and k rows are
ordered so that the two numbers that rotary embedding turns are neighbours. Each tensor is read, converted
and packed before the next, so that loading needs little more memory than the model itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from workers.config import Kernels
from workers.errors import ConfigError
from workers.load.checkpoint import Checkpoint
from workers.model.config import ModelConfig
from workers.model.decoder import Decoder
from workers.model.native import decoder as native
from workers.model.native.panels import Bits
from workers.model.torch_decoder import TorchDecoder
from workers.model.weights import DecoderWeights, LayerWeights, Projection


def assemble(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels = "auto",
    bits: Bits = 16,
) -> Decoder:
    """The fastest decoder there is for this model here, computing in `dtype` on `device`; `bits` below 16 are
    those of each weight of its projections.

    Raises ConfigError if the tensors do not fit, or if there is no decoder for weights of so few bits.
    """
    config = checkpoint.config
    if kernels == "auto" and native.supports(config, dtype, device, bits):
        # Weights that a file holds quantised come out as they were if nothing rounds them on the way.
        precise = dtype if bits == 16 else torch.float32
        return native.NativeDecoder(config, _Assembly(checkpoint, dtype, precise, device).weights(), bits)
    if bits != 16:
        raise ConfigError(
            f"weights of {bits} bits need the native kernels: a CPU with AVX512-BF16 and VNNI, gcc, "
            "kernels: auto, and a model whose sizes are multiples of 32; use weights: auto"
        )
    return TorchDecoder(config, _Assembly(checkpoint, dtype, dtype, device).weights())


class _Assembly:
    """`matrix_dtype` is that of the projections."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, matrix_dtype: torch.dtype, device: torch.device
    ) -> None:
        self._checkpoint = checkpoint
        self._config: ModelConfig = checkpoint.config
        self._dtype = dtype
        self._matrix_dtype = matrix_dtype
        self._device = device

    def weights(self) -> DecoderWeights:
        config = self._config
        embedding = self._read("embedding.weight", (config.vocab_size, config.hidden_size))
        head = embedding
        if not config.has_tied_head:
            head = self._read("head.weight", (config.vocab_size, config.hidden_size))
        return DecoderWeights(
            embedding_VE=embedding.to(self._dtype),
            layers=(self._layer(index) for index in range(config.num_layers)),
            norm_E=self._norm("norm", config.hidden_size),
            head=Projection(head),
        )

    def _layer(self, index: int) -> LayerWeights[Projection]:
        config, name = self._config, f"layers.{index}."
        hidden, sandwich = config.hidden_size, config.has_sandwich_norms
        mixed = config.num_heads * config.head_dim
        has_qk_norms = f"{name}q_norm.weight" in self._checkpoint
        return LayerWeights(
            attention_norm_E=self._norm(name + "attention_norm", hidden),
            qkv=self._qkv(name),
            q_norm_D=self._head_norm(name + "q_norm") if has_qk_norms else None,
            k_norm_D=self._head_norm(name + "k_norm") if has_qk_norms else None,
            output=self._linear([name + "output"], hidden, mixed),
            after_attention_norm_E=self._norm(name + "after_attention_norm", hidden) if sandwich else None,
            mlp_norm_E=self._norm(name + "mlp_norm", hidden),
            gate_up=self._gate_up(name),
            down=self._linear([name + "down"], hidden, config.intermediate_size),
            after_mlp_norm_E=self._norm(name + "after_mlp_norm", hidden) if sandwich else None,
        )

    def _qkv(self, name: str) -> Projection:
        config = self._config
        rows = [
            config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
        ]
        if f"{name}qkv.weight" in self._checkpoint:
            parts = list(torch.split(self._read(name + "qkv.weight", (sum(rows), config.hidden_size)), rows))
            biases = self._biases([name + "qkv"], sum(rows))
            split = list(torch.split(biases, rows)) if biases is not None else []
        else:
            parts = [
                self._read(f"{name}{part}.weight", (size, config.hidden_size))
                for part, size in zip("qkv", rows, strict=True)
            ]
            split = [
                self._read(f"{name}{part}.bias", (size,))
                for part, size in zip("qkv", rows, strict=True)
                if f"{name}{part}.bias" in self._checkpoint
            ]
        for group in (parts, split):
            group[:2] = [self._paired(tensor) for tensor in group[:2]]
        return Projection(torch.cat(parts), torch.cat(split) if split else None)

    def _gate_up(self, name: str) -> Projection:
        config = self._config
        if f"{name}gate_up.weight" in self._checkpoint:
            return self._linear([name + "gate_up"], 2 * config.intermediate_size, config.hidden_size)
        return self._linear([name + "gate", name + "up"], config.intermediate_size, config.hidden_size)

    def _linear(self, names: list[str], rows: int, columns: int) -> Projection:
        """One matrix of several that each have `rows` rows."""
        weights = [self._read(f"{name}.weight", (rows, columns)) for name in names]
        return Projection(torch.cat(weights), self._biases(names, rows))

    def _biases(self, names: Iterable[str], rows: int) -> torch.Tensor | None:
        present = [name for name in names if f"{name}.bias" in self._checkpoint]
        return torch.cat([self._read(f"{name}.bias", (rows,)) for name in present]) if present else None

    def _head_norm(self, name: str) -> torch.Tensor:
        return self._paired(self._norm(name, self._config.head_dim))

    def _norm(self, name: str, size: int) -> torch.Tensor:
        weight = self._checked(f"{name}.weight", (size,)).float() + self._config.norm_offset
        return weight.to(self._device, self._dtype)

    def _paired(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rows of whole heads, with the halves that are turned together made neighbours."""
        if self._checkpoint.is_interleaved:
            return tensor
        dim = self._config.head_dim
        num_pairs = len(self._config.layers[0].rope.inverse_frequencies)
        order = torch.arange(2 * num_pairs).view(2, num_pairs).t().flatten()
        order = torch.cat([order, torch.arange(2 * num_pairs, dim)]).to(tensor.device)
        return tensor.reshape(-1, dim, *tensor.shape[1:]).index_select(1, order).flatten(0, 1)

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._checked(name, shape).to(self._device, self._matrix_dtype)

    def _checked(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._checkpoint.tensor(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"the tensor {name!r} has shape {tuple(tensor.shape)}, the configuration asks for {shape}"
            )
        return tensor
