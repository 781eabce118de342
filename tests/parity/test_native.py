"""The native kernels and torch's operations are two renderings of the same arithmetic in bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.families import FAMILIES, VOCAB, save, tiny_model
from workers.load.model import LoadedModel, load_model
from workers.model.batch import Chunk
from workers.model.cache import KvCache
from workers.model.native import library
from workers.model.native.operations import NativeOperations
from workers.model.torch_operations import TorchOperations

NUM_PROMPT = 150  # several tiles, past the sliding windows
BLOCK = 16

pytestmark = pytest.mark.skipif(library.load() is None, reason="this CPU or machine cannot have the kernels")


def wide_enough(family: str) -> bool:
    """Phi-3 heads are as wide as hidden size / heads, which is 16 here; the kernels take 32 and more."""
    return not family.startswith("phi3")


@pytest.fixture(scope="module", params=[family for family in FAMILIES if wide_enough(family)])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LoadedModel]:
    reference = tiny_model(request.param, head_dim=32)
    folder: Path = tmp_path_factory.mktemp("model")
    save(reference, folder)
    return reference, load_model(str(folder), "bf16", name="tiny")


def logits(model: LoadedModel, operations: Any, cuts: list[int], ids: list[int]) -> torch.Tensor:
    cache = KvCache.sized(model.config, 8 << 20, BLOCK, model.dtype, torch.device("cpu"))
    table = [5, 3, 9, 1, 2, 8, 4, 7, 6, 10]
    parts = []
    for first, last in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        hidden = model.decoder.forward([Chunk(ids[first:last], first, table, "all")], cache, operations)
        parts.append(model.decoder.logits(hidden))
    return torch.cat(parts)


def prompt() -> list[int]:
    return torch.randint(3, VOCAB, (NUM_PROMPT,), generator=torch.Generator().manual_seed(9)).tolist()


@torch.inference_mode()
def test_native_kernels_are_as_near_to_fp32_as_torch_is(pair: tuple[Any, LoadedModel]) -> None:
    reference, model = pair
    ids = prompt()
    exact = reference(torch.tensor([ids])).logits[0]
    native = NativeOperations(model.config, BLOCK)
    plain = TorchOperations(model.config, BLOCK, model.dtype, torch.device("cpu"))
    native_error = (logits(model, native, [], ids) - exact).square().mean().sqrt().item()
    plain_error = (logits(model, plain, [], ids) - exact).square().mean().sqrt().item()
    assert native_error < 1.25 * plain_error + 1e-3 * exact.std().item()


@torch.inference_mode()
def test_native_results_do_not_depend_on_how_the_prompt_is_cut(pair: tuple[Any, LoadedModel]) -> None:
    _, model = pair
    ids = prompt()
    native = NativeOperations(model.config, BLOCK)
    whole = logits(model, native, [], ids)
    assert torch.equal(logits(model, native, [1, 2, 40, 41, 100, 149], ids), whole)
