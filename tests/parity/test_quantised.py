"""Weights of 8 and 4 bits: GGUF's formats are kept to the last bit, and logits stay near those of the numbers
that the bits stand for."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.parity.families import SIZES, VOCAB, save
from workers.config import Weights
from workers.errors import ConfigError
from workers.load.model import LoadedModel, load_model
from workers.model.batch import Chunk
from workers.model.cache import KvCache
from workers.model.native import library
from workers.model.native.panels import Bits, Format, quantise

FORMATS: list[tuple[str, Bits, Format]] = [
    ("Q8_0", 8, Format.INT8),
    ("Q4_0", 4, Format.INT4),
    ("Q4_1", 4, Format.INT4_LEAST),
]
MOST_ERROR = 2.0  # of the logits, to that of bf16 from the same numbers: inputs have 8 bits as well


@pytest.mark.parametrize(("name", "bits", "format_"), FORMATS)
def test_what_gguf_holds_comes_out_as_it_was(name: str, bits: Bits, format_: Format) -> None:
    assert bits != 16
    kind = gguf.GGMLQuantizationType[name]
    random = np.random.default_rng(5).standard_normal((48, 128), dtype=np.float32)
    held = torch.from_numpy(np.array(gguf.quants.dequantize(gguf.quants.quantize(random, kind), kind)))
    quantised = quantise(held, bits)
    assert quantised.format is format_
    zero = {Format.INT8: 128, Format.INT4: 8, Format.INT4_LEAST: 0}[format_]
    numbers = quantised.scale.float().unsqueeze(-1) * (quantised.q.float() - zero)
    if quantised.least is not None:
        numbers += quantised.least.float().unsqueeze(-1)
    assert torch.equal(numbers.flatten(1), held)


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_is_to_the_nearest_step(bits: Bits) -> None:
    assert bits != 16
    weights = torch.randn(64, 96, generator=torch.Generator().manual_seed(3))
    quantised = quantise(weights, bits)
    assert quantised.format is (Format.INT8 if bits == 8 else Format.INT4_LEAST)
    scale = quantised.scale.float().unsqueeze(-1)
    least = -128 * scale if quantised.least is None else quantised.least.float().unsqueeze(-1)
    error = (scale * quantised.q.float() + least - weights.view(64, 3, 32)).abs()
    assert bool((error <= 0.51 * scale + 1e-3).all())


@pytest.fixture(scope="module", params=["int8", "int4"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LlamaForCausalLM, LoadedModel, LoadedModel]:
    """transformers' model with the numbers that quantised weights stand for; ours of these, and of bf16."""
    if library.load() is None:
        pytest.skip("this CPU or machine cannot have the kernels")
    weights: Weights = request.param
    torch.manual_seed(11)
    config = LlamaConfig(**SIZES | {"intermediate_size": 224, "head_dim": 32}, initializer_range=0.1)
    reference = LlamaForCausalLM(config).eval()
    kind = gguf.GGMLQuantizationType.Q8_0 if weights == "int8" else gguf.GGMLQuantizationType.Q4_0
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if parameter.ndim == 2 and "embed" not in name:
                kept = gguf.GGMLQuantizationType.Q8_0 if "lm_head" in name else kind
                stored = gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), kept), kept)
                parameter.copy_(torch.from_numpy(np.array(stored)))
    folder: Path = tmp_path_factory.mktemp("model")
    save(reference, folder)
    return (
        reference,
        load_model(str(folder), weights, name="tiny"),
        load_model(str(folder), "bf16", name="tiny", kernels="torch"),
    )


def logits(model: LoadedModel, cuts: list[int], ids: list[int]) -> torch.Tensor:
    cache = KvCache.sized(model.config, 8 << 20, 16, model.dtype, torch.device("cpu"))
    parts = []
    for first, last in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        hidden = model.decoder.forward([Chunk(ids[first:last], first, [3, 1, 4, 2, 5], "all")], cache)
        parts.append(model.decoder.logits(hidden).clone())
    return torch.cat(parts)


@torch.inference_mode()
def test_logits_are_near_those_of_the_same_numbers(
    made: tuple[LlamaForCausalLM, LoadedModel, LoadedModel],
) -> None:
    reference, quantised, plain = made
    ids = torch.randint(3, VOCAB, (70,), generator=torch.Generator().manual_seed(2)).tolist()
    exact = reference(torch.tensor([ids])).logits[0]
    error, of_bf16 = ((logits(model, [], ids) - exact).square().mean().sqrt() for model in (quantised, plain))
    assert error < MOST_ERROR * of_bf16


@torch.inference_mode()
def test_results_do_not_depend_on_how_the_prompt_is_cut(
    made: tuple[LlamaForCausalLM, LoadedModel, LoadedModel],
) -> None:
    _, model, _ = made
    ids = torch.randint(3, VOCAB, (70,), generator=torch.Generator().manual_seed(2)).tolist()
    assert torch.equal(logits(model, [1, 2, 30, 31, 64], ids), logits(model, [], ids))


def test_without_the_kernels_there_are_no_quantised_weights() -> None:
    with pytest.raises(ConfigError, match="weights of 4 bits need the native kernels"):
        load_model("builtin:smollm2-135m", "int4", name="x", kernels="torch")
