"""The native decoder and torch's are two renderings of the same arithmetic in bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.families import FAMILIES, VOCAB, save, tiny_model
from workers.config import Kernels
from workers.load.model import LoadedModel, load_model
from workers.model.batch import Chunk
from workers.model.cache import KvCache
from workers.model.native import library
from workers.model.native.decoder import NativeDecoder
from workers.model.torch_decoder import TorchDecoder

NUM_PROMPT = 150  # several tiles, past the sliding windows
BLOCK = 16

pytestmark = pytest.mark.skipif(library.load() is None, reason="this CPU or machine cannot have the kernels")


def wide_enough(family: str) -> bool:
    """Phi-3 heads are as wide as hidden size / heads, which is 16 here; the kernels take 32 and more."""
    return not family.startswith("phi3")


@pytest.fixture(scope="module", params=[family for family in FAMILIES if wide_enough(family)])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' model, and the folder where it is saved."""
    reference = tiny_model(request.param, head_dim=32)
    folder: Path = tmp_path_factory.mktemp("model")
    save(reference, folder)
    return reference, folder


def load(folder: Path, kernels: Kernels) -> LoadedModel:
    return load_model(str(folder), "bf16", name="tiny", kernels=kernels)


def logits(model: LoadedModel, cuts: list[int], ids: list[int]) -> torch.Tensor:
    cache = KvCache.sized(model.config, 8 << 20, BLOCK, model.dtype, torch.device("cpu"))
    table = [5, 3, 9, 1, 2, 8, 4, 7, 6, 10]
    parts = []
    for first, last in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        hidden = model.decoder.forward([Chunk(ids[first:last], first, table, "all")], cache)
        parts.append(model.decoder.logits(hidden).clone())
    return torch.cat(parts)


def prompt() -> list[int]:
    return torch.randint(3, VOCAB, (NUM_PROMPT,), generator=torch.Generator().manual_seed(9)).tolist()


@torch.inference_mode()
def test_the_native_decoder_is_as_near_to_fp32_as_torch_is(saved: tuple[Any, Path]) -> None:
    reference, folder = saved
    ids = prompt()
    exact = reference(torch.tensor([ids])).logits[0]
    native, plain = load(folder, "auto"), load(folder, "torch")
    assert isinstance(native.decoder, NativeDecoder)
    assert isinstance(plain.decoder, TorchDecoder)
    native_error = (logits(native, [], ids) - exact).square().mean().sqrt().item()
    plain_error = (logits(plain, [], ids) - exact).square().mean().sqrt().item()
    assert native_error < 1.25 * plain_error + 1e-3 * exact.std().item()


@torch.inference_mode()
def test_native_results_do_not_depend_on_how_the_prompt_is_cut(saved: tuple[Any, Path]) -> None:
    model = load(saved[1], "auto")
    ids = prompt()
    assert torch.equal(logits(model, [1, 2, 40, 41, 100, 149], ids), logits(model, [], ids))


@torch.inference_mode()
def test_native_results_do_not_depend_on_which_rows_are_wanted(saved: tuple[Any, Path]) -> None:
    """The last layer computes wanted rows only."""
    model = load(saved[1], "auto")
    ids = prompt()
    cache = KvCache.sized(model.config, 8 << 20, BLOCK, model.dtype, torch.device("cpu"))
    chunks = [
        Chunk(ids[:70], 0, [1, 2, 3, 4, 5], "none"),
        Chunk(ids[:33], 0, [6, 7, 8], "last"),
        Chunk(ids[:50], 0, [9, 10, 11, 12], "all"),
    ]
    few = model.decoder.logits(model.decoder.forward(chunks, cache)).clone()
    whole = logits(model, [], ids)
    assert torch.equal(few, torch.cat([whole[32:33], whole[:50]]))
