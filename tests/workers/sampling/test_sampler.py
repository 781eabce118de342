"""The sampler against a plain rendering of its specification, one row at a time and in mixed batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.sampling.params import SamplingParams
from workers.sampling.plan import RowState, build_plan
from workers.sampling.sampler import CANDIDATES, prompt_logprobs, sample
from workers.sampling.uniforms import uniform

VOCAB = 3000
EOS = [2]


def logits_of(seed: int, rows: int = 1, spread: float = 3.0) -> torch.Tensor:
    """Rounded as a bf16 model's are, so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, VOCAB, generator=generator) * spread).bfloat16().float()


def row(prompt: list[int] | None = None, outputs: list[int] | None = None, **fields: Any) -> RowState:
    state = RowState(SamplingParams(max_tokens=100, **fields), 0, prompt or [5, 6], EOS, VOCAB)
    for token in outputs or []:
        state.observe(token)
    return state


def kept(
    logits: list[float], *, temperature: float, min_p: float, top_k: int, top_p: float
) -> dict[int, float]:
    """The weights that are left for the draw, by the specification, in double precision."""
    best = max(logits)
    weights = [math.exp((value - best) / temperature) for value in logits]
    total = sum(weights)
    probs = sorted(((weight / total, -index) for index, weight in enumerate(weights)), reverse=True)
    probs = [entry for entry in probs if entry[0] >= min_p * probs[0][0]]
    if top_k:
        probs = probs[:top_k]
    mass, before = sum(prob for prob, _ in probs), 0.0
    left: dict[int, float] = {}
    for prob, index in probs:
        if left and before >= top_p * mass:
            break
        left[-index] = prob
        before += prob
    return left


FILTERS = [
    {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 5, "top_p": 1.0, "min_p": 0.0},
    {"top_k": 0, "top_p": 0.7, "min_p": 0.0},
    {"top_k": 0, "top_p": 0.9999, "min_p": 0.0},
    {"top_k": 2000, "top_p": 0.99, "min_p": 0.0},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.1},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_draws_follow_the_distribution_of_the_specification(
    filters: dict[str, Any], temperature: float
) -> None:
    logits = logits_of(1, spread=1.2)
    expected = kept(logits[0].tolist(), temperature=temperature, **filters)
    num_draws = 1200
    rows = [row(temperature=temperature, seed=seed, **filters) for seed in range(num_draws)]
    drawn = sample(logits.repeat(num_draws, 1), build_plan(rows)).token_ids
    smallest = min(expected.values())
    for token in set(drawn) - set(expected):  # only a tie at the edge may fall the other way
        weight = torch.softmax(logits[0].double() / temperature, -1)[token].item()
        assert weight == pytest.approx(smallest, rel=1e-3)
    mass = sum(expected.values())
    for token, weight in sorted(expected.items(), key=lambda item: -item[1])[:3]:
        share, count = weight / mass, drawn.count(token)
        deviation = math.sqrt(num_draws * share * (1 - share))
        assert abs(count - num_draws * share) <= 5 * deviation + 1


@given(st.integers(0, 10_000), st.lists(st.sampled_from(range(len(FILTERS))), min_size=2, max_size=6))
@settings(max_examples=40, deadline=None)
def test_a_row_draws_the_same_alone_and_in_any_batch(seed: int, kinds: list[int]) -> None:
    logits = logits_of(seed, rows=len(kinds))
    fields = [
        {
            **FILTERS[kind],
            "temperature": [0.0, 0.8, 1.3][place % 3],
            "seed": seed + place,
            "num_logprobs": place % 3 or None,
        }
        for place, kind in enumerate(kinds)
    ]
    batch = sample(logits.clone(), build_plan([row(**given_) for given_ in fields]))
    for place, given_ in enumerate(fields):
        alone = sample(logits[place : place + 1].clone(), build_plan([row(**given_)]))
        assert batch.token_ids[place] == alone.token_ids[0]
        assert batch.logprobs[place] == alone.logprobs[0]


def test_greedy_takes_the_largest_logit() -> None:
    logits = logits_of(3, rows=2)
    assert (
        sample(logits.clone(), build_plan([row(temperature=0.0)] * 2)).token_ids == logits.argmax(-1).tolist()
    )


def test_a_wide_nucleus_falls_back_to_the_whole_vocabulary() -> None:
    logits = torch.zeros(1, VOCAB)
    drawn = {
        sample(logits.clone(), build_plan([row(top_p=0.999, seed=seed)])).token_ids[0] for seed in range(60)
    }
    assert VOCAB > CANDIDATES
    assert len(drawn) > 50


def test_min_tokens_bans_eos_and_stop_ids_until_they_are_out() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 2], logits[0, 7], logits[0, 9] = 9.0, 8.0, 1.0
    fields: dict[str, Any] = {"temperature": 0.0, "min_tokens": 2, "stop_token_ids": (7,)}
    assert sample(logits.clone(), build_plan([row(outputs=[1], **fields)])).token_ids == [9]
    assert sample(logits.clone(), build_plan([row(outputs=[1, 1], **fields)])).token_ids == [2]


def edited(logits: torch.Tensor, state: RowState) -> torch.Tensor:
    sample(logits, build_plan([state]))
    return logits[0]


def test_penalties_and_bias_change_the_logits_as_the_specification_says() -> None:
    logits = logits_of(4)
    state = row(
        prompt=[10, 11],
        outputs=[12, 12, 11],
        temperature=0.0,
        repetition_penalty=1.5,
        frequency_penalty=0.25,
        presence_penalty=0.5,
        logit_bias={12: 2.0, 20: -100.0},
    )
    expected = logits[0].clone()
    expected[12] += 2.0
    expected[20] -= 100.0
    for token in (10, 11, 12):
        expected[token] = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
    expected[12] -= 0.25 * 2 + 0.5
    expected[11] -= 0.25 + 0.5
    torch.testing.assert_close(edited(logits, state), expected)


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = logits_of(5)
    raw = torch.log_softmax(logits[0], -1)
    result = sample(logits, build_plan([row(temperature=0.0, logit_bias={17: 100.0}, num_logprobs=3)]))
    (reported,) = result.logprobs
    assert reported is not None
    assert result.token_ids == [reported.token_id] == [17]
    assert reported.logprob == pytest.approx(raw[17].item())
    values, ids = raw.topk(3)
    assert [token for token, _ in reported.top] == ids.tolist()
    assert [value for _, value in reported.top] == pytest.approx(values.tolist())


def test_prompt_logprobs_give_each_next_token_its_own() -> None:
    logits = logits_of(6, rows=3)
    raw = torch.log_softmax(logits, -1)
    reported = prompt_logprobs(logits, [4, 5, 6], 2)
    assert [entry.token_id for entry in reported] == [4, 5, 6]
    assert [entry.logprob for entry in reported] == pytest.approx(
        [raw[0, 4].item(), raw[1, 5].item(), raw[2, 6].item()]
    )
    assert all(len(entry.top) == 2 for entry in reported)


def test_rows_whose_logits_are_no_numbers_are_reported_and_the_others_are_not() -> None:
    logits = logits_of(7, rows=3)
    logits[1] = float("nan")
    result = sample(logits.clone(), build_plan([row(temperature=0.0)] * 3))
    assert result.broken_rows == [1]
    assert result.token_ids[0] == logits[0].argmax().item()


def test_uniforms_are_uniform_and_depend_on_seed_and_position() -> None:
    draws = [uniform(seed, position) for seed in range(100) for position in range(100)]
    assert len(set(draws)) == len(draws)
    assert all(0.0 <= draw < 1.0 for draw in draws)
    for tenth in range(10):
        share = sum(tenth / 10 <= draw < (tenth + 1) / 10 for draw in draws) / len(draws)
        assert share == pytest.approx(0.1, abs=0.015)
