"""Chat and completions through the whole cluster, with the real openai client."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

MODEL = "smollm2-135m"
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]

PARAMETER_SETS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 24},
    "seeded": {"temperature": 1.0, "seed": 11, "max_tokens": 24},
    "top p and top k": {
        "temperature": 0.8,
        "top_p": 0.9,
        "seed": 5,
        "max_tokens": 24,
        "extra_body": {"top_k": 20},
    },
    "min p": {"temperature": 1.2, "seed": 6, "max_tokens": 24, "extra_body": {"min_p": 0.05}},
    "penalties": {
        "temperature": 0.9,
        "seed": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "max_completion_tokens": 24,
    },
    "n": {"n": 3, "temperature": 1.0, "seed": 8, "max_tokens": 16},
    "stop": {"temperature": 0, "max_tokens": 48, "stop": ["Paris", " is the"]},
    "logit bias": {"temperature": 0, "max_tokens": 16, "logit_bias": {"284": -100, "12345": 2}},
    "logprobs": {"temperature": 0.7, "seed": 2, "max_tokens": 12, "logprobs": True, "top_logprobs": 3},
    "emoji": {
        "temperature": 1.5,
        "seed": 21,
        "max_tokens": 48,
        "logit_bias": {"38082": 8, "116": 6, "245": 5},
    },
}


@pytest.mark.parametrize("name", PARAMETER_SETS)
def test_streamed_chat_equals_the_whole_answer(client: OpenAI, name: str) -> None:
    fields = PARAMETER_SETS[name]
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)
    texts = dict.fromkeys(range(fields.get("n", 1)), "")
    finishes: dict[int, str | None] = {}
    logprobs: dict[int, list[Any]] = {}
    for chunk in client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes[choice.index] = choice.finish_reason or finishes.get(choice.index)
            if choice.logprobs and choice.logprobs.content:
                logprobs.setdefault(choice.index, []).extend(choice.logprobs.content)
    for choice in whole.choices:
        assert texts[choice.index] == choice.message.content
        assert finishes[choice.index] == choice.finish_reason
        if fields.get("logprobs"):
            assert choice.logprobs is not None
            assert logprobs[choice.index] == choice.logprobs.content
    assert "\ufffd" not in "".join(texts.values()) or whole.choices[0].finish_reason == "length"


def test_the_answer_is_coherent_and_usage_adds_up(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=30)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens <= 30
    assert answer.model == MODEL


def test_a_stop_string_that_spans_tokens_is_never_shown_even_in_part(client: OpenAI) -> None:
    free = client.completions.create(model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=40)
    text = free.choices[0].text
    stop = text[12:21]  # begins and ends inside tokens
    pieces = [
        chunk.choices[0].text
        for chunk in client.completions.create(
            model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=40, stop=stop, stream=True
        )
        if chunk.choices
    ]
    assert "".join(pieces) == text[: text.index(stop)]


def test_a_repeated_prompt_is_answered_from_the_prefix_cache(client: OpenAI) -> None:
    prompt = "The water of the river " * 40
    cached = []
    for _ in range(4):  # two workers: by the third request at least one has seen it
        answer = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=2)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
    assert max(cached) >= answer.usage.prompt_tokens - 32


def test_stream_options_add_one_usage_chunk_without_choices(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    assert with_usage == [chunks[-1]]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def test_completions_take_token_ids_several_prompts_echo_and_logprobs(client: OpenAI) -> None:
    ids = [504, 3575, 282, 4649, 314]
    several = client.completions.create(
        model=MODEL, prompt=[ids, ids[:3]], n=2, temperature=1, seed=4, max_tokens=4
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    scored = client.completions.create(
        model=MODEL, prompt=ids, echo=True, logprobs=1, max_tokens=3, temperature=0
    ).choices[0]
    assert scored.logprobs is not None
    assert scored.logprobs.tokens is not None
    assert len(scored.logprobs.tokens) == len(ids) + 3
    assert scored.logprobs.token_logprobs is not None
    assert scored.logprobs.token_logprobs[0] is None
    assert "".join(scored.logprobs.tokens) == scored.text


def test_models_lists_what_is_served(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
