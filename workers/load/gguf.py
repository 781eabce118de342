"""A .gguf file: llama.cpp's format, with the configuration, the tokenizer and quantised weights in one.

Quantised tensors are dequantised when read. Files of the llama architecture store q and k with the pairs of
rotary embedding next to each other, those of the others as halves; Gemma's norms have their 1 added.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoTokenizer

from workers.errors import ConfigError
from workers.model.config import LayerConfig, ModelConfig, Rope
from workers.model.parts import Span

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3", "phi3")
FORMATS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
_TOP = {"token_embd": "embedding", "output_norm": "norm", "output": "head"}
_PARTS = {
    "attn_norm": "attention_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "qkv",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_output": "output",
    "post_attention_norm": "after_attention_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "post_ffw_norm": "after_mlp_norm",
}
_GEMMA_WINDOW_EVERY = 6  # of Gemma 3's layers each sixth sees everything
_GEMMA_LOCAL_THETA = 10000.0
_GEMMA_27B_LAYERS = 62  # this size alone scales q·k by hidden size / heads instead of the head dimension


class GgufCheckpoint:
    """Maps the file into memory; tensors are dequantised when asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as GGUF: {error}") from error
        self._family = self._field("general.architecture", None, prefix="")
        if self._family not in FAMILIES:
            raise ConfigError(
                f"{path} holds a model of architecture {self._family!r}; served are {', '.join(FAMILIES)}"
            )
        self.is_interleaved = self._family == "llama"
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._places = {
            name: stored for stored in self._tensors if (name := self._canonical(stored)) is not None
        }
        self.config = self._model_config()
        eos = [self._field(key, -1, prefix="tokenizer.ggml.") for key in ("eos_token_id", "eot_token_id")]
        self.eos_ids = [int(token_id) for token_id in eos if token_id >= 0]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def shape(self, name: str) -> tuple[int, ...]:
        return _shape(self._tensors[self._place(name)])

    def tensor(self, name: str, rows: Span | None = None, columns: Span | None = None) -> torch.Tensor:
        return self._dequantised(self._place(name), rows, columns)

    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._path.parent, gguf_file=self._path.name)

    def _place(self, name: str) -> str:
        if name not in self._places:
            raise ConfigError(f"{self._path} has no tensor for {name!r}; is the download complete?")
        place: str = self._places[name]
        return place

    def _dequantised(
        self, stored: str, rows: Span | None = None, columns: Span | None = None
    ) -> torch.Tensor:
        tensor = self._tensors[stored]
        if tensor.tensor_type.name not in FORMATS:
            raise ConfigError(
                f"{self._path} has {stored!r} in format {tensor.tensor_type.name}; "
                f"read are {', '.join(FORMATS)}"
            )
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
        shape = _shape(tensor)
        stored_bytes = tensor.data.view(np.uint8).reshape(*shape[:-1], -1)
        first, last = (0, shape[-1]) if columns is None else (columns.first, columns.last)
        if rows is not None and len(shape) == 1:  # of a vector the elements are the rows
            first, last = rows.first, rows.last
        elif rows is not None:
            stored_bytes = stored_bytes[rows.first : rows.last]
        first_block, last_block = first // block_size, -(-last // block_size)
        blocks = stored_bytes[..., first_block * block_bytes : last_block * block_bytes]
        values = gguf.quants.dequantize(np.ascontiguousarray(blocks), tensor.tensor_type)
        wanted = values[..., first - first_block * block_size : last - first_block * block_size]
        return torch.from_numpy(np.array(wanted, dtype=np.float32))

    def _canonical(self, stored: str) -> str | None:
        stem, _, kind = stored.rpartition(".")
        if stem in _TOP:
            return f"{_TOP[stem]}.{kind}"
        found = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
        if found is None or found[2] not in _PARTS:
            return None
        part = _PARTS[found[2]]
        if part == "up" and f"blk.{found[1]}.ffn_gate.weight" not in self._tensors:
            part = "gate_up"
        return f"layers.{found[1]}.{part}.{kind}"

    def _field(self, key: str, default: Any, prefix: str | None = None) -> Any:
        """A value of the metadata. Raises ConfigError if it is missing and `default` is None."""
        name = f"{self._family}." + key if prefix is None else prefix + key
        field = self._reader.get_field(name)
        if field is not None:
            return field.contents()
        if default is None:
            raise ConfigError(f"{self._path} lacks the metadata {name!r}")
        return default

    def _model_config(self) -> ModelConfig:
        is_gemma = self._family == "gemma3"
        hidden_size = int(self._field("embedding_length", None))
        num_heads = int(self._field("attention.head_count", None))
        head_dim = int(self._field("attention.key_length", hidden_size // num_heads))
        num_layers = int(self._field("block_count", None))
        is_scaled_by_width = is_gemma and num_layers == _GEMMA_27B_LAYERS
        max_context_tokens = int(self._field("context_length", None))
        if self._field("rope.scaling.type", "none") == "longrope":
            max_context_tokens = int(self._field("rope.scaling.original_context_length", max_context_tokens))
        return ModelConfig(
            family=self._family,
            vocab_size=int(self._tensors["token_embd.weight"].shape[1]),
            hidden_size=hidden_size,
            intermediate_size=int(self._field("feed_forward_length", None)),
            num_heads=num_heads,
            num_kv_heads=int(self._field("attention.head_count_kv", num_heads)),
            head_dim=head_dim,
            layers=self._layers(num_layers, head_dim, max_context_tokens),
            norm_eps=float(self._field("attention.layer_norm_rms_epsilon", None)),
            max_context_tokens=max_context_tokens,
            attention_scale=float(hidden_size / num_heads if is_scaled_by_width else head_dim) ** -0.5,
            activation="gelu_tanh" if is_gemma else "silu",
            embedding_scale=hidden_size**0.5 if is_gemma else 1.0,
            has_sandwich_norms=is_gemma,
            has_tied_head="output.weight" not in self._tensors,
        )

    def _layers(self, num_layers: int, head_dim: int, max_context_tokens: int) -> tuple[LayerConfig, ...]:
        window: int | None = int(self._field("attention.sliding_window", 0)) or None
        if window is not None and window >= max_context_tokens:
            window = None
        everywhere = LayerConfig(self._rope(head_dim), window)
        if self._family != "gemma3":
            return (everywhere,) * num_layers
        full = LayerConfig(everywhere.rope, None)
        local = LayerConfig(Rope(tuple(_frequencies(_GEMMA_LOCAL_THETA, head_dim).tolist())), window)
        return tuple(full if (index + 1) % _GEMMA_WINDOW_EVERY == 0 else local for index in range(num_layers))

    def _rope(self, head_dim: int) -> Rope:
        frequencies = _frequencies(
            float(self._field("rope.freq_base", 10000.0)), int(self._field("rope.dimension_count", head_dim))
        )
        scaling = 1.0
        kind = self._field("rope.scaling.type", "none")
        if kind == "linear":
            frequencies = frequencies / float(self._field("rope.scaling.factor", 1.0))
        elif kind == "longrope":
            scaling = float(self._field("rope.scaling.attn_factor", 1.0))
        elif kind != "none":
            raise ConfigError(f"{self._path} scales its rope by {kind!r}; linear and longrope are known")
        for factors in ("rope_freqs.weight", "rope_factors_short.weight"):
            if factors in self._tensors:
                frequencies = frequencies / self._dequantised(factors)
        return Rope(tuple(frequencies.tolist()), scaling)


def _shape(tensor: Any) -> tuple[int, ...]:
    """Rows first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _frequencies(theta: float, size: int) -> torch.Tensor:
    return 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size)
