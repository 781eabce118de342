"""Every family gives the logits and the greedy tokens of transformers' own forward pass."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from tests.parity.families import FAMILIES, VOCAB, save, tiny_model
from tests.workers.driver import Driver
from workers.load.model import LoadedModel, load_model
from workers.model.batch import Chunk
from workers.model.cache import KvCache
from workers.sampling.params import SamplingParams

NUM_PROMPT, NUM_OUTPUT = 75, 24  # past the sliding windows, and over several blocks and tiles


@pytest.fixture(scope="module", params=FAMILIES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[object, LoadedModel]:
    """transformers' model, and ours loaded from what it saved."""
    reference = tiny_model(request.param)
    folder: Path = tmp_path_factory.mktemp("model")
    save(reference, folder)
    return reference, load_model(str(folder), "fp32", name="tiny")


def prompt() -> list[int]:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, VOCAB, (NUM_PROMPT,), generator=generator).tolist()


@torch.inference_mode()
def test_logits_agree_however_the_prompt_is_cut(pair: tuple[object, LoadedModel]) -> None:
    reference, ours = pair
    ids = prompt()
    expected = reference(torch.tensor([ids])).logits[0]  # type: ignore[operator]
    cache = KvCache.sized(ours.config, 8 << 20, 16, ours.dtype, torch.device("cpu"))
    table = list(range(1, 8))
    for cuts in ([0, NUM_PROMPT], [0, 7, 40, 41, NUM_PROMPT]):
        hidden = torch.cat(
            [
                ours.decoder.forward([Chunk(ids[first:last], first, table, "all")], cache)
                for first, last in itertools.pairwise(cuts)
            ]
        )
        difference = (ours.decoder.logits(hidden) - expected).abs().max().item()
        assert difference < 1e-3, f"max abs difference {difference} with cuts {cuts}"


@torch.inference_mode()
def test_greedy_tokens_agree(pair: tuple[object, LoadedModel]) -> None:
    reference, ours = pair
    ids = prompt()
    expected = reference.generate(  # type: ignore[attr-defined]
        torch.tensor([ids]),
        max_new_tokens=NUM_OUTPUT,
        min_new_tokens=NUM_OUTPUT,
        do_sample=False,
        eos_token_id=None,
    )[0, NUM_PROMPT:].tolist()
    params = SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0, ignore_eos=True)
    assert Driver(ours, kv_memory_bytes=8 << 20).generate(ids, params).token_ids == expected
