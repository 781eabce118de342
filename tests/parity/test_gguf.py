"""GGUF files: every format that is promised is read, and a whole file gives its model's logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from tests.parity.families import SIZES, VOCAB, tiny_model
from workers.errors import ConfigError
from workers.load.assembly import assemble
from workers.load.gguf import GgufCheckpoint
from workers.model.batch import Chunk
from workers.model.cache import KvCache

FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def stored_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in top:
        return f"{top[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def interleaved(weight: np.ndarray[Any, Any], dim: int) -> np.ndarray[Any, Any]:
    """Rows as llama.cpp's converter orders them for the llama architecture."""
    return weight.reshape(-1, 2, dim // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write(path: Path, model: Any, architecture: str, format_: str) -> None:
    """The model as a GGUF file; matrices in `format_` where their rows are whole blocks of 32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_key_length(model.config.head_dim)
    writer.add_rope_dimension_count(model.config.head_dim)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    kind = gguf.GGMLQuantizationType[format_]
    for name, parameter in model.state_dict().items():
        weight = parameter.numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            weight = np.ascontiguousarray(interleaved(weight, model.config.head_dim))
        used = kind if weight.ndim == 2 and weight.shape[1] % 32 == 0 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(weight, used)
        writer.add_tensor(stored_name(name), data, raw_shape=data.shape, raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@torch.inference_mode()
def test_a_file_gives_the_logits_of_the_model_it_holds(
    tmp_path: Path, architecture: str, format_: str
) -> None:
    reference = tiny_model(architecture)
    path = tmp_path / "model.gguf"
    write(path, reference, architecture, format_)
    checkpoint = GgufCheckpoint(path)
    for parameter in reference.state_dict().values():  # transformers' forward on the weights as stored
        kind = gguf.GGMLQuantizationType[format_]
        if parameter.ndim == 2 and parameter.shape[1] % 32 == 0:
            stored = gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), kind), kind)
            parameter.copy_(torch.from_numpy(np.array(stored)))
    ids = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = reference(torch.tensor([ids])).logits[0]
    decoder = assemble(checkpoint, torch.float32, torch.device("cpu"))
    cache = KvCache.sized(decoder.config, 1 << 20, 16, torch.float32, torch.device("cpu"))
    actual = decoder.logits(decoder.forward([Chunk(ids, 0, [1, 2, 3], "all")], cache))
    assert (actual - expected).abs().max().item() < 1e-3


def block_of(kind: gguf.GGMLQuantizationType, seed: int) -> np.ndarray[Any, Any]:
    """One row of a k-quant with random content and scales that are finite numbers."""
    block_size, type_size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(seed).integers(0, 256, (4, type_size), dtype=np.uint8)
    half = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if kind is gguf.GGMLQuantizationType.Q4_K:
        data[:, 0:2], data[:, 2:4] = half, half
    else:
        data[:, -2:] = half
    assert block_size == 256
    return data


def q4_k(block: np.ndarray[Any, Any]) -> list[float]:
    """llama.cpp's description of the format, read number by number: 256 values in 8 groups of 32."""
    d, dmin = np.frombuffer(block[:4].tobytes(), np.float16).astype(float)
    packed, nibbles = block[4:16].astype(int), block[16:].astype(int)
    values: list[float] = []
    for group in range(8):
        if group < 4:
            scale, least = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4)
            least = (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4)
        shift = 4 * (group % 2)
        quants = (nibbles[(group // 2) * 32 : (group // 2) * 32 + 32] >> shift) & 15
        values += [d * scale * quant - dmin * least for quant in quants]
    return values


def q6_k(block: np.ndarray[Any, Any]) -> list[float]:
    """16 groups of 16 values of 6 bits: 4 low bits in 128 bytes, 2 high bits in 64, int8 scales, one fp16."""
    low, high = block[:128].astype(int), block[128:192].astype(int)
    scales = block[192:208].view(np.int8).astype(int)
    d = float(np.frombuffer(block[208:210].tobytes(), np.float16)[0])
    values = [0.0] * 256
    for half in range(2):
        for lane in range(32):
            for quarter in range(4):
                nibble = low[half * 64 + lane + 32 * (quarter % 2)]
                four = (nibble >> 4) if quarter >= 2 else (nibble & 15)
                two = (high[half * 32 + lane] >> (2 * quarter)) & 3
                place = half * 128 + quarter * 32 + lane
                values[place] = d * scales[place // 16] * ((four | (two << 4)) - 32)
    return values


@pytest.mark.parametrize(("format_", "expected"), [("Q4_K", q4_k), ("Q6_K", q6_k)])
def test_k_quants_are_read_as_their_format_says(tmp_path: Path, format_: str, expected: Any) -> None:
    kind = gguf.GGMLQuantizationType[format_]
    data = block_of(kind, 3)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    for field in ("block_count", "context_length", "embedding_length", "feed_forward_length", "head_count"):
        getattr(writer, f"add_{field}")(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", data, raw_shape=data.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    actual = GgufCheckpoint(tmp_path / "k.gguf").tensor("embedding.weight").numpy()
    assert actual.shape == (4, 256)
    np.testing.assert_allclose(actual, [expected(row) for row in data], rtol=1e-5, atol=1e-6)


def test_a_file_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=r"architecture 'mamba'; served are llama, "):
        GgufCheckpoint(path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model at all")
    with pytest.raises(ConfigError, match="cannot be read as GGUF"):
        GgufCheckpoint(path)
