"""The engine on the real model: endings, cancels, faults, prompt log-probabilities, blocks that come back."""

from __future__ import annotations

import pytest
import torch

from tests.workers.driver import Driver
from workers.load.model import LoadedModel
from workers.sampling.params import SamplingParams

PROMPT = list(range(1000, 1100))


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 16, "temperature": 0.0, "ignore_eos": True, **fields})  # type: ignore[arg-type]


@pytest.fixture
def driver(smollm2: LoadedModel) -> Driver:
    return Driver(smollm2)


def test_a_request_ends_at_max_tokens_and_leaves_no_block_in_use(driver: Driver) -> None:
    output = driver.generate(PROMPT, greedy())
    assert (len(output.token_ids), output.finish) == (16, "length")
    assert driver.engine.load.num_used_blocks == 0
    assert driver.engine.load.num_running == 0


def test_a_stop_id_ends_the_sequence_and_min_tokens_holds_it_back(driver: Driver) -> None:
    free = driver.generate(PROMPT, greedy(), "free").token_ids
    stop = next(token for token in free if free.index(token) >= 2)
    cut = driver.generate(PROMPT, greedy(stop_token_ids=(stop,)), "cut")
    assert cut.finish == "stop"
    assert cut.token_ids == free[: free.index(stop) + 1]
    held = driver.generate(PROMPT, greedy(stop_token_ids=(stop,), min_tokens=16), "held")
    assert stop not in held.token_ids
    assert len(held.token_ids) == 16


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_cancel_frees_the_blocks_before_the_next_step(driver: Driver, num_steps: int) -> None:
    driver.submit("r", PROMPT, greedy(max_tokens=100, n=2))
    for _ in range(num_steps):
        driver.step()
    driver.engine.cancel("r")
    assert driver.engine.load.num_used_blocks == 0
    assert driver.engine.load.num_running + driver.engine.load.num_waiting == 0
    assert driver.engine.step().finished_ids == ["r"]
    assert not driver.engine.has_work


def test_cancelling_one_sequence_leaves_its_sibling_running(driver: Driver) -> None:
    driver.submit("r", PROMPT, greedy(n=2))
    driver.run(until=lambda: bool(driver.outputs["r", 1].token_ids))
    driver.engine.cancel("r", 0)
    driver.run()
    assert driver.outputs["r", 0].finish is None
    assert driver.outputs["r", 1].finish == "length"


def test_siblings_share_the_prompt_blocks_of_the_first_sequence(driver: Driver) -> None:
    driver.submit("r", PROMPT, greedy(n=3))
    driver.run()
    assert [driver.outputs["r", index].num_cached_tokens for index in range(3)] == [0, 96, 96]


def test_a_step_that_raises_fails_its_requests_and_the_engine_goes_on(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = driver.engine._model.decoder
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "logits", lambda hidden: torch.full((hidden.shape[0], 49152), float("nan")))
        broken = driver.generate(PROMPT, greedy(), "broken")
    assert broken.finish == "error"
    assert broken.error is not None
    assert driver.engine.load.num_used_blocks == 0
    assert driver.generate(PROMPT, greedy(), "next").finish == "length"


def test_a_request_that_can_never_fit_is_refused_with_the_numbers(smollm2: LoadedModel) -> None:
    driver = Driver(smollm2, kv_memory_bytes=4 << 20)
    output = driver.generate(list(range(3000)), greedy())
    assert output.finish == "error"
    assert output.error is not None
    assert "3000" in output.error or "3016" in output.error


def test_prompt_logprobs_are_those_of_a_forward_pass_over_the_prompt(driver: Driver) -> None:
    params = greedy(num_prompt_logprobs=2, num_logprobs=0, max_tokens=1)
    whole = driver.generate(PROMPT, params, "whole").prompt_logprobs
    assert whole is not None
    assert [entry.token_id for entry in whole] == PROMPT
    assert whole[0].logprob is None
    again = driver.generate(PROMPT, params, "again")  # must not be answered from the cache
    assert again.prompt_logprobs == whole
    for length in (10, 50):
        tail = driver.generate(PROMPT[:length], greedy(max_tokens=1, num_logprobs=2), f"tail {length}")
        ((token_id, best), *_) = tail.logprobs[0].top
        assert (token_id, best) == whole[length].top[0]


def test_prompt_logprobs_do_not_depend_on_how_the_prompt_is_cut(smollm2: LoadedModel) -> None:
    params = greedy(num_prompt_logprobs=1, max_tokens=1)
    whole = Driver(smollm2).generate(PROMPT, params).prompt_logprobs
    cut = Driver(smollm2, max_step_tokens=16).generate(PROMPT, params).prompt_logprobs
    assert cut == whole


def test_tenants_with_different_salts_share_no_blocks(driver: Driver) -> None:
    for request_id, salt in (("a", b"a"), ("b", b"b"), ("a again", b"a")):
        driver.submit(request_id, PROMPT, greedy(), salt)
        driver.run()
    cached = [driver.outputs[request_id, 0].num_cached_tokens for request_id in ("a", "b", "a again")]
    assert cached == [0, 0, 96]
