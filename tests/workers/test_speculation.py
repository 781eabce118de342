"""Speculation changes how fast tokens come, and nothing else."""

from __future__ import annotations

import msgspec
import pytest
from tokenizers import Tokenizer

from tests.workers.driver import Driver
from workers.load.model import LoadedModel
from workers.sampling.params import SamplingParams
from workers.speculation import Drafter, longest_draft

TEXT = "The miller opens the sluice, the water turns the wheel, and the wheel turns the stone. " * 4
PARAMS = {
    "greedy": SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True),
    "seeded": SamplingParams(max_tokens=60, temperature=0.6, top_p=0.9, seed=5, ignore_eos=True),
    "logprobs": SamplingParams(max_tokens=60, temperature=0.3, seed=6, num_logprobs=3, ignore_eos=True),
    "with an end": SamplingParams(max_tokens=7, temperature=0.0, ignore_eos=True),
}


@pytest.fixture(scope="module")
def prompt(smollm2: LoadedModel) -> list[int]:
    return Tokenizer.from_buffer(smollm2.card.tokenizer_json).encode(TEXT, add_special_tokens=False).ids


@pytest.mark.parametrize("name", PARAMS)
def test_tokens_and_logprobs_are_those_without_drafts(
    smollm2: LoadedModel, prompt: list[int], name: str
) -> None:
    plain = Driver(smollm2).generate(prompt, PARAMS[name])
    driver = Driver(smollm2, speculation="ngram")
    drafted = driver.generate(prompt, PARAMS[name])
    assert drafted.token_ids == plain.token_ids
    assert drafted.logprobs == plain.logprobs
    assert driver.num_accepted > 0
    assert drafted.finish == "length"


def test_a_batch_with_and_without_drafts(smollm2: LoadedModel, prompt: list[int]) -> None:
    """Neighbours draft, some cannot because their logits are edited, and blocks are scarce."""
    penalised = msgspec.structs.replace(PARAMS["seeded"], frequency_penalty=0.5)
    asked = {
        "a": (prompt, PARAMS["greedy"]),
        "b": (prompt[10:], PARAMS["seeded"]),
        "c": (prompt[20:], penalised),
        "d": (prompt[5:], PARAMS["logprobs"]),
    }
    bytes_per_block = 2 * 30 * 3 * 64 * 2 * 16
    driver = Driver(smollm2, speculation="ngram", kv_memory_bytes=24 * bytes_per_block)
    for name, (ids, params) in asked.items():
        driver.submit(name, ids, params, salt=name.encode())
    driver.run()
    assert driver.num_accepted > 0
    for name, (ids, params) in asked.items():
        alone = Driver(smollm2).generate(ids, params)
        assert driver.outputs[name, 0].token_ids == alone.token_ids
        assert driver.outputs[name, 0].logprobs == alone.logprobs


def test_a_stop_token_within_a_draft_ends_the_answer(smollm2: LoadedModel, prompt: list[int]) -> None:
    plain = Driver(smollm2).generate(prompt, PARAMS["greedy"]).token_ids
    stop = plain[12]
    params = msgspec.structs.replace(PARAMS["greedy"], stop_token_ids=[stop])
    stopped = Driver(smollm2, speculation="ngram").generate(prompt, params)
    assert stopped.token_ids == plain[: plain.index(stop) + 1]
    assert stopped.finish == "stop"


def test_drafts_follow_the_latest_place_of_the_longest_ngram() -> None:
    drafter = Drafter(4)
    assert drafter.propose([1, 2, 3, 9, 1, 2, 3, 7, 8, 1, 2, 3], 4) == [7, 8, 1, 2]
    assert drafter.propose([1, 2, 3, 9, 1, 2, 3, 7, 8, 1, 2, 3, 5, 2, 3], 2) == [5, 2]
    assert drafter.propose([1, 2, 3, 9, 1, 2, 3, 7, 8, 1, 2, 3, 5, 2, 3, 6, 6], 4) == []


def test_drafts_shrink_and_pause_when_they_are_wrong() -> None:
    drafter = Drafter(8)
    repeated = [1, 2, 3, 4, 5, 6, 7, 8, 9] * 3
    assert len(drafter.propose(repeated, 8)) == 8
    drafter.observe(8, 2)
    assert len(drafter.propose(repeated, 8)) == 3
    drafter.observe(3, 3)
    assert len(drafter.propose(repeated, 8)) == 6
    for _ in range(2):
        drafter.observe(1, 0)
    assert drafter.propose(repeated, 8) == []


def test_a_large_batch_drafts_nothing() -> None:
    assert [longest_draft(count) for count in (0, 1, 2, 4, 8, 9, 64)] == [0, 15, 7, 3, 1, 0, 0]
