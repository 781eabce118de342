"""What distinguishes the families of models that one decoder implementation covers.

Llama, SmolLM2, Mistral, Qwen2, Qwen3, Gemma 3 and Phi-3 are the same decoder with these differences;
`workers/load` reads them from a transformers config or from a GGUF file's metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: pair i of a head turns by position * inverse_frequencies[i]; `scaling` multiplies
    the result (YaRN, LongRoPE). Fewer pairs than the head has leave its tail unturned."""

    inverse_frequencies: tuple[float, ...]
    scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """`window` None: every earlier token is seen; w: the last w tokens, the present one included."""

    rope: Rope
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of one decoder. Biases and q/k norms are there if the weights have them."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerConfig, ...]
    norm_eps: float
    max_context_tokens: int
    attention_scale: float  # multiplies q·k
    activation: Literal["silu", "gelu_tanh"] = "silu"
    embedding_scale: float = 1.0
    norm_offset: float = 0.0  # added to every norm's weight (Gemma stores w - 1)
    has_sandwich_norms: bool = False  # a norm after attention and after the MLP as well (Gemma)
    has_tied_head: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)
