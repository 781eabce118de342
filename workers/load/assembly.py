"""A checkpoint's tensors, brought into the form the decoder computes with.

Projections that read the same input become one matrix, norms get their offset, and q and k rows are
ordered so that the two numbers that rotary embedding turns are neighbours. Each tensor is read, converted
and packed before the next, so that loading needs little more memory than the model itself; a rank of a gang
reads its own part of each and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from workers.config import Kernels
from workers.errors import ConfigError
from workers.load.checkpoint import Checkpoint
from workers.model.decoder import Decoder
from workers.model.lanes import Lanes
from workers.model.native import decoder as native
from workers.model.native.panels import Bits
from workers.model.parts import Cut, Part, Span, cut
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
    whole = cut(checkpoint.config)
    is_native = uses_native(whole, dtype, device, kernels, bits)
    return assemble_part(checkpoint, whole.parts[0], None, dtype, device, is_native, bits)


def uses_native(cut: Cut, dtype: torch.dtype, device: torch.device, kernels: Kernels, bits: Bits) -> bool:
    """Whether the native decoder can run every part. Raises ConfigError if it must and cannot."""
    if kernels == "auto" and all(native.supports(part.config, dtype, device, bits) for part in cut.parts):
        return True
    if bits != 16:
        raise ConfigError(
            f"weights of {bits} bits need the native kernels: a CPU with AVX512-BF16 and VNNI, gcc, "
            "kernels: auto, and a model whose sizes are multiples of 32; use weights: auto"
        )
    return False


def assemble_part(
    checkpoint: Checkpoint,
    part: Part,
    lanes: Lanes | None,
    dtype: torch.dtype,
    device: torch.device,
    is_native: bool,
    bits: Bits,
) -> Decoder:
    """The decoder of one part; `lanes` are None if it has its layers to itself."""
    # Weights that a file holds quantised come out as they were if nothing rounds them on the way.
    precise = dtype if bits == 16 else torch.float32
    weights = _Assembly(checkpoint, part, dtype, precise, device).weights()
    if is_native:
        return native.NativeDecoder(part, weights, bits, lanes)
    return TorchDecoder(part, weights, lanes)


class _Assembly:
    """`matrix_dtype` is that of the projections."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        part: Part,
        dtype: torch.dtype,
        matrix_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = part.whole
        self._part = part
        self._dtype = dtype
        self._matrix_dtype = matrix_dtype
        self._device = device

    def weights(self) -> DecoderWeights:
        config, part = self._config, self._part
        embedding = head = None
        if part.is_first:
            shape = (config.vocab_size, config.hidden_size)
            embedding = head = self._read("embedding.weight", shape, [part.vocabulary])
            if not config.has_tied_head:
                head = self._read("head.weight", shape, [part.vocabulary])
        return DecoderWeights(
            embedding_VE=None if embedding is None else embedding.to(self._dtype),
            layers=(self._layer(index) for index in range(part.layers.first, part.layers.last)),
            norm_E=self._norm("norm", config.hidden_size) if part.is_last else None,
            head=None if head is None else Projection(head),
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
            output=self._inward(name + "output", mixed, self._part.q_heads.times(config.head_dim)),
            after_attention_norm_E=self._norm(name + "after_attention_norm", hidden) if sandwich else None,
            mlp_norm_E=self._norm(name + "mlp_norm", hidden),
            gate_up=self._gate_up(name),
            down=self._inward(name + "down", config.intermediate_size, self._part.inner),
            after_mlp_norm_E=self._norm(name + "after_mlp_norm", hidden) if sandwich else None,
        )

    def _qkv(self, name: str) -> Projection:
        config, part, dim = self._config, self._part, self._config.head_dim
        sizes = [config.num_heads * dim, config.num_kv_heads * dim, config.num_kv_heads * dim]
        spans = [part.q_heads.times(dim), part.kv_heads.times(dim), part.kv_heads.times(dim)]
        qkv = self._outward(name, "qkv", ["q", "k", "v"], sizes, spans)
        turned = spans[0].size + spans[1].size
        return Projection(
            self._paired(qkv.weight_OI, turned),
            None if qkv.bias_O is None else self._paired(qkv.bias_O, turned),
        )

    def _gate_up(self, name: str) -> Projection:
        sizes, spans = [self._config.intermediate_size] * 2, [self._part.inner] * 2
        return self._outward(name, "gate_up", ["gate", "up"], sizes, spans)

    def _outward(
        self, name: str, fused: str, names: Sequence[str], sizes: Sequence[int], spans: Sequence[Span]
    ) -> Projection:
        """Matrices that read the same input as one, of each the rows of its span; in some files they are one
        already. Lanes divide their outputs."""
        hidden = self._config.hidden_size
        if f"{name}{fused}.weight" in self._checkpoint:
            total, firsts = sum(sizes), [sum(sizes[:index]) for index in range(len(sizes))]
            rows = [span.moved(first) for span, first in zip(spans, firsts, strict=True)]
            return Projection(
                self._read(f"{name}{fused}.weight", (total, hidden), rows),
                self._biases([(f"{name}{fused}.bias", total, rows)]),
            )
        every = list(zip(names, sizes, spans, strict=True))
        weights = [self._read(f"{name}{part}.weight", (size, hidden), [span]) for part, size, span in every]
        biases = self._biases([(f"{name}{part}.bias", size, [span]) for part, size, span in every])
        return Projection(torch.cat(weights), biases)

    def _inward(self, name: str, num_inputs: int, columns: Span) -> Projection:
        """A matrix of which lanes divide the inputs; their sums make the output, and one adds the bias."""
        hidden = self._config.hidden_size
        weight = self._read(f"{name}.weight", (hidden, num_inputs), columns=columns)
        biases = [(f"{name}.bias", hidden, [Span(0, hidden)])] if self._part.lane == 0 else []
        return Projection(weight, self._biases(biases))

    def _biases(self, wanted: Iterable[tuple[str, int, Sequence[Span]]]) -> torch.Tensor | None:
        present = [self._read(name, (size,), rows) for name, size, rows in wanted if name in self._checkpoint]
        return torch.cat(present) if present else None

    def _head_norm(self, name: str) -> torch.Tensor:
        return self._paired(self._norm(name, self._config.head_dim), self._config.head_dim)

    def _norm(self, name: str, size: int) -> torch.Tensor:
        self._check(f"{name}.weight", (size,))
        weight = self._checkpoint.tensor(f"{name}.weight").float() + self._config.norm_offset
        return weight.to(self._device, self._dtype)

    def _paired(self, tensor: torch.Tensor, num_turned: int) -> torch.Tensor:
        """In the first `num_turned` rows, which are whole heads, the halves that are turned together become
        neighbours."""
        if self._checkpoint.is_interleaved:
            return tensor
        dim = self._config.head_dim
        num_pairs = len(self._config.layers[0].rope.inverse_frequencies)
        order = torch.arange(2 * num_pairs).view(2, num_pairs).t().flatten()
        order = torch.cat([order, torch.arange(2 * num_pairs, dim)]).to(tensor.device)
        heads = tensor[:num_turned].reshape(-1, dim, *tensor.shape[1:]).index_select(1, order).flatten(0, 1)
        return torch.cat([heads, tensor[num_turned:]])

    def _read(
        self,
        name: str,
        shape: tuple[int, ...],
        rows: Sequence[Span] | None = None,
        columns: Span | None = None,
    ) -> torch.Tensor:
        """Of a tensor of that shape the rows of these spans, one after the other, or the columns."""
        self._check(name, shape)
        if rows is None:
            tensor = self._checkpoint.tensor(name, columns=columns)
        else:
            parts = [self._checkpoint.tensor(name, span) for span in rows]
            tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
        return tensor.to(self._device, self._matrix_dtype).contiguous()

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        stored = self._checkpoint.shape(name)
        if stored != shape:
            raise ConfigError(f"the tensor {name!r} has shape {stored}, the configuration asks for {shape}")
