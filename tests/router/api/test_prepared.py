"""From requests to what workers are told: limits of the model, defaults, seeds and indices."""

from __future__ import annotations

from typing import Any

import pytest

from router.api.prepared import MAX_SEQUENCES, ModelLimits, Prepared, prepare_chat, prepare_completion
from router.api.schema import ChatCompletionRequest, CompletionRequest
from router.text.tokenizer import ModelText
from workers.errors import ContextTooLong, HeadraceError, InvalidRequest

LIMITS = ModelLimits(max_context_tokens=64, vocab_size=49152)


def chat(text: ModelText, content: str = "hi", **fields: Any) -> Prepared:
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": content}]
    return prepare_chat(ChatCompletionRequest(model="m", messages=messages, **fields), text, LIMITS)


def completion(text: ModelText, **fields: Any) -> Prepared:
    return prepare_completion(CompletionRequest(model="m", **fields), text, LIMITS)


def test_without_a_limit_the_rest_of_the_context_may_be_generated(smollm2: ModelText) -> None:
    (prompt,) = chat(smollm2).prompts
    assert prompt.params.max_tokens == 64 - len(prompt.token_ids)
    short, long = completion(smollm2, prompt=[[5], [5, 6, 7]]).prompts
    assert (short.params.max_tokens, long.params.max_tokens) == (63, 61)


def test_the_newer_name_of_max_tokens_counts_when_both_are_given(smollm2: ModelText) -> None:
    assert chat(smollm2, max_tokens=5, max_completion_tokens=7).prompts[0].params.max_tokens == 7
    assert chat(smollm2, max_tokens=5).prompts[0].params.max_tokens == 5


def test_over_the_context_is_refused_with_the_three_numbers(smollm2: ModelText) -> None:
    assert completion(smollm2, prompt=[5] * 60, max_tokens=4).prompts[0].params.max_tokens == 4
    with pytest.raises(
        ContextTooLong, match=r"64 tokens, .* 65 .* 60 in the prompt and 5 to generate"
    ) as caught:
        completion(smollm2, prompt=[5] * 60, max_tokens=5)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")
    with pytest.raises(ContextTooLong, match="64 in the prompt and 1 to generate") as caught:
        completion(smollm2, prompt=[5] * 64)
    assert caught.value.param == "prompt"
    with pytest.raises(ContextTooLong) as caught:
        chat(smollm2, "word " * 100)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [""]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt.1"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[1, 49152]]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt.1"),
        ({"prompt": ["a"], "logit_bias": {"49152": 1.0}}, "logit_bias"),
        ({"prompt": ["a"], "logit_bias": {"-1": 1.0}}, "logit_bias"),
        ({"prompt": ["a"], "logit_bias": {"a": 1.0}}, "logit_bias"),
        ({"prompt": ["a"], "logit_bias": {"9" * 5000: 1.0}}, "logit_bias"),
        ({"prompt": ["a"], "stop_token_ids": [49152]}, "stop_token_ids"),
        ({"prompt": ["a"], "min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"prompt": ["a"] * 9, "n": 128}, "prompt"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(
    smollm2: ModelText, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(smollm2, **fields)
    assert caught.value.param == param


def test_the_params_carry_what_was_asked_for(smollm2: ModelText) -> None:
    prepared = completion(
        smollm2,
        prompt=["a"],
        n=3,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        repetition_penalty=1.1,
        logit_bias={"7": -5},
        seed=9,
        stop=["x"],
        stop_token_ids=[3],
        min_tokens=1,
        max_tokens=4,
        logprobs=2,
        echo=True,
    )
    params = prepared.prompts[0].params
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (3, 0.5, 0.9, 40, 0.1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.2, -0.3, 1.1)
    assert (params.logit_bias, params.seed, params.stop_token_ids) == ({7: -5.0}, 9, (3,))
    assert (params.min_tokens, params.max_tokens) == (1, 4)
    assert (params.num_logprobs, params.num_prompt_logprobs) == (2, 2)


def test_filters_that_filter_nothing_are_off(smollm2: ModelText) -> None:
    for top_k in (-1, 0, 49152, 1 << 80):
        assert completion(smollm2, prompt=["a"], top_k=top_k).prompts[0].params.top_k == 0
    assert completion(smollm2, prompt=["a"], temperature=1e-9).prompts[0].params.is_greedy


def test_a_given_seed_holds_for_every_prompt_and_an_absent_one_differs(smollm2: ModelText) -> None:
    given = completion(smollm2, prompt=["a", "a"], seed=5).prompts
    assert [prompt.params.seed for prompt in given] == [5, 5]
    drawn = completion(smollm2, prompt=["a", "a"]).prompts
    assert drawn[0].params.seed != drawn[1].params.seed
    for seed in (-(1 << 63), -1, (1 << 63) - 1):
        params = completion(smollm2, prompt=["a"], seed=seed, n=128).prompts[0].params
        assert params.seed >= 0
        assert params.seed + params.n < 1 << 63


def test_log_probabilities_of_a_chat(smollm2: ModelText) -> None:
    assert chat(smollm2).num_logprobs is None
    assert chat(smollm2, logprobs=True).prompts[0].params.num_logprobs == 0
    assert chat(smollm2, logprobs=True, top_logprobs=4).num_logprobs == 4
    assert chat(smollm2, logprobs=True).prompts[0].params.num_prompt_logprobs is None


def test_scoring_asks_for_one_token_to_be_dropped(smollm2: ModelText) -> None:
    prepared = completion(smollm2, prompt=["a"], max_tokens=0, echo=True, logprobs=1)
    assert prepared.scores_only
    assert prepared.prompts[0].params.max_tokens == 1


def test_echo_shows_the_prompt_as_it_was_sent(smollm2: ModelText) -> None:
    assert completion(smollm2, prompt=["<|im_start|>a"], echo=True).prompts[0].text == "<|im_start|>a"
    ids = smollm2.encode("<|im_start|>a")
    assert completion(smollm2, prompt=[ids], echo=True).prompts[0].text == "<|im_start|>a"


def test_reasoning_effort_and_template_variables_reach_the_template(llama: ModelText) -> None:
    with pytest.raises(HeadraceError, match="eos_token"):
        chat(llama, chat_template_kwargs={"eos_token": ""})
    assert chat(llama, reasoning_effort="low", chat_template_kwargs={"x": 1}).prompts[0].token_ids[0] == 1


def test_the_most_sequences_one_request_may_ask_for_pass(smollm2: ModelText) -> None:
    prepared = completion(smollm2, prompt=["a"] * (MAX_SEQUENCES // 128), n=128)
    assert len(prepared.prompts) * prepared.n == MAX_SEQUENCES
