"""A directory with config.json and safetensors, as the Hugging Face hub has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from workers.errors import ConfigError
from workers.model.config import LayerConfig, ModelConfig, Rope
from workers.model.parts import Span

FAMILIES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
}
_TOP = {"model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "head"}
_PARTS = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.qkv_proj": "qkv",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "self_attn.o_proj": "output",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.gate_up_proj": "gate_up",
    "mlp.down_proj": "down",
}
_GEMMA_PARTS = {
    **_PARTS,
    "post_attention_layernorm": "after_attention_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "after_mlp_norm",
}


class DirectoryCheckpoint:
    """Opens the files at once and reads tensors when asked."""

    is_interleaved = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hf_config = _read_config(path)
        self.config = _model_config(self._hf_config)
        self.eos_ids = _eos_ids(path, self._hf_config)
        parts = _GEMMA_PARTS if self.config.family == "gemma3" else _PARTS
        self._places: dict[str, tuple[Any, str]] = {}
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ConfigError(f"{path} has no .safetensors file; other weight formats are not read")
        for file in files:
            try:
                opened = safe_open(file, framework="pt")
            except SafetensorError as error:
                raise ConfigError(f"{file} cannot be read: {error}") from error
            for stored in opened.keys():  # type: ignore[no-untyped-call]  # noqa: SIM118
                name = _canonical(stored, parts)
                if name is not None:
                    self._places[name] = (opened, stored)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def tensor(self, name: str, rows: Span | None = None, columns: Span | None = None) -> torch.Tensor:
        part = self._slice(name)
        tensor: torch.Tensor = part[_range(rows)] if columns is None else part[_range(rows), _range(columns)]
        return tensor

    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._path, local_files_only=True)

    def _slice(self, name: str) -> Any:
        if name not in self._places:
            raise ConfigError(f"{self._path} has no tensor for {name!r}; is the download complete?")
        opened, stored = self._places[name]
        return opened.get_slice(stored)


def _range(span: Span | None) -> slice:
    return slice(None) if span is None else slice(span.first, span.last)


def _read_config(path: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path / 'config.json'} cannot be read: {error}") from error
    if config.model_type not in FAMILIES:
        raise ConfigError(
            f"models of type {config.model_type!r} are not served; those of {', '.join(FAMILIES)} are"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise ConfigError(
            f"{path} holds quantised safetensors, which are not read; use the unquantised model"
        )
    return config.get_text_config()


def _model_config(hf: Any) -> ModelConfig:
    family = FAMILIES[hf.model_type]
    is_gemma = family == "gemma3"
    if getattr(hf, "attn_logit_softcapping", None) or getattr(hf, "final_logit_softcapping", None):
        raise ConfigError("models that cap their logits (softcapping) are not served")
    activation = getattr(hf, "hidden_activation", None) or hf.hidden_act
    if activation not in ("silu", "gelu_pytorch_tanh"):
        raise ConfigError(f"the activation {activation!r} is not known; silu and gelu_pytorch_tanh are")
    head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    max_context_tokens = _max_context_tokens(hf)
    scale = hf.query_pre_attn_scalar if is_gemma else head_dim
    return ModelConfig(
        family=family,
        vocab_size=hf.vocab_size,
        hidden_size=hf.hidden_size,
        intermediate_size=hf.intermediate_size,
        num_heads=hf.num_attention_heads,
        num_kv_heads=hf.num_key_value_heads,
        head_dim=head_dim,
        layers=_layers(hf, head_dim, max_context_tokens),
        norm_eps=hf.rms_norm_eps,
        max_context_tokens=max_context_tokens,
        attention_scale=scale**-0.5,
        activation="silu" if activation == "silu" else "gelu_tanh",
        embedding_scale=hf.hidden_size**0.5 if is_gemma else 1.0,
        norm_offset=1.0 if is_gemma else 0.0,
        has_sandwich_norms=is_gemma,
        has_tied_head=hf.tie_word_embeddings,
    )


def _max_context_tokens(hf: Any) -> int:
    """LongRoPE models turn differently past their original context; they are served within it."""
    longrope = any(parameters["rope_type"] == "longrope" for parameters in _rope_parameters(hf).values())
    if longrope:
        return int(getattr(hf, "original_max_position_embeddings", hf.max_position_embeddings))
    return int(hf.max_position_embeddings)


def _rope_parameters(hf: Any) -> dict[str | None, dict[str, Any]]:
    """By type of layer if the model has several kinds, else under None."""
    parameters = hf.rope_parameters
    return {None: parameters} if "rope_type" in parameters else dict(parameters)


def _layers(hf: Any, head_dim: int, max_context_tokens: int) -> tuple[LayerConfig, ...]:
    ropes = {kind: _rope(hf, kind, head_dim) for kind in _rope_parameters(hf)}
    kinds: list[str] | None = getattr(hf, "layer_types", None)
    window: int | None = getattr(hf, "sliding_window", None)
    if window is not None and window >= max_context_tokens:
        window = None
    return tuple(
        LayerConfig(
            rope=ropes[None if None in ropes or kinds is None else kinds[index]],
            window=window if kinds is None or kinds[index] == "sliding_attention" else None,
        )
        for index in range(hf.num_hidden_layers)
    )


def _rope(hf: Any, kind: str | None, head_dim: int) -> Rope:
    parameters = _rope_parameters(hf)[kind]
    if parameters["rope_type"] == "default":
        size = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
        return Rope(tuple((1.0 / parameters["rope_theta"] ** exponents).tolist()))
    try:
        compute = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    except KeyError:
        known = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
        raise ConfigError(f"the rope type {parameters['rope_type']!r} is not known; {known} are") from None
    frequencies, scaling = compute(hf, torch.device("cpu"), layer_type=kind)
    return Rope(tuple(frequencies.tolist()), float(scaling))


def _eos_ids(path: Path, hf: Any) -> list[int]:
    """All ids that end a generation, by the model's own account."""
    found = [hf.eos_token_id]
    if (path / "generation_config.json").is_file():
        found.append(GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id)
    flat = [item for entry in found for item in (entry if isinstance(entry, list) else [entry])]
    return [item for item in flat if item is not None]


def _canonical(stored: str, parts: dict[str, str]) -> str | None:
    """Our name for a tensor; None for those that the text model does not need."""
    name = re.sub(r"^(model\.language_model|language_model\.model)\.", "model.", stored)
    name = name.removeprefix("language_model.")
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    if found is None or found[2] not in parts:
        return None
    return f"layers.{found[1]}.{parts[found[2]]}.{kind}"
