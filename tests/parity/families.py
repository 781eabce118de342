"""Tiny models with random weights, one per family, saved by transformers itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 199
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(6)],
    "long_factor": [2.0 + 0.1 * i for i in range(6)],
    "original_max_position_embeddings": 256,
    "partial_rotary_factor": 0.75,
}


def sizes(head_dim: int) -> dict[str, Any]:
    return SIZES | {"head_dim": head_dim}


FAMILIES: dict[str, Callable[[int], Any]] = {
    "llama": lambda dim: LlamaForCausalLM(LlamaConfig(**sizes(dim))),
    "llama tied, biased, llama3 rope": lambda dim: LlamaForCausalLM(
        LlamaConfig(**sizes(dim), tie_word_embeddings=True, attention_bias=True, rope_parameters=LLAMA3_ROPE)
    ),
    "mistral": lambda dim: MistralForCausalLM(MistralConfig(**sizes(dim), sliding_window=None)),
    "mistral with a window": lambda dim: MistralForCausalLM(MistralConfig(**sizes(dim), sliding_window=24)),
    "qwen2": lambda dim: Qwen2ForCausalLM(Qwen2Config(**sizes(dim))),
    "qwen2 yarn": lambda dim: Qwen2ForCausalLM(Qwen2Config(**sizes(dim), rope_parameters=YARN_ROPE)),
    "qwen3": lambda dim: Qwen3ForCausalLM(Qwen3Config(**sizes(2 * dim))),
    "gemma3": lambda dim: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **sizes(dim) | {"num_hidden_layers": 7},
            sliding_window=24,
            query_pre_attn_scalar=24,
            tie_word_embeddings=True,
        )
    ),
    "phi3": lambda dim: Phi3ForCausalLM(Phi3Config(**sizes(dim))),
    "phi3 longrope, partly rotated": lambda dim: Phi3ForCausalLM(
        Phi3Config(
            **sizes(dim),
            rope_parameters=LONG_ROPE,
            original_max_position_embeddings=256,
        )
    ),
}


def tiny_model(family: str, head_dim: int = SIZES["head_dim"]) -> Any:
    """The model in fp32; norms and biases are random as well, so that none of them can be forgotten."""
    torch.manual_seed(len(family))
    model = FAMILIES[family](head_dim).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4.0)  # far enough from zero for attention to have a shape
    return model


def save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    vocabulary = {f"t{index}": index for index in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="t1", eos_token="t2").save_pretrained(
        folder
    )
