"""Request bodies: what is taken, what is refused, and that a refusal names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.api.schema import ChatCompletionRequest, CompletionRequest, parse
from workers.errors import InvalidRequest

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}


def chat(**fields: Any) -> ChatCompletionRequest:
    return parse(ChatCompletionRequest, json.dumps(CHAT | fields).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse(CompletionRequest, json.dumps(COMPLETION | fields).encode())


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", 2.5, ["2", "2.5"]),
        ("temperature", -0.1, ["0", "-0.1"]),
        ("temperature", "hot", ["number", "'hot'"]),
        ("temperature", True, ["number"]),
        ("top_p", 0, ["greater than 0"]),
        ("top_p", 1.01, ["1"]),
        ("top_k", -2, ["-1"]),
        ("min_p", 2, ["1"]),
        ("n", 0, ["1"]),
        ("n", 129, ["128", "129"]),
        ("n", 1.5, ["integer"]),
        ("n", "2", ["integer"]),
        ("max_tokens", 0, ["1"]),
        ("max_tokens", "many", ["integer", "'many'"]),
        ("max_completion_tokens", -1, ["1"]),
        ("presence_penalty", 2.1, ["2"]),
        ("frequency_penalty", -2.1, ["-2"]),
        ("repetition_penalty", 0, ["0.01"]),
        ("logit_bias", {"5": 101}, ["100"]),
        ("logit_bias", [1], ["object"]),
        ("seed", 1 << 63, ["less than"]),
        ("stop", "", ["empty"]),
        ("stop", ["a"] * 17, ["16"]),
        ("stop", ["x" * 1025], ["1024"]),
        ("stop", 5, ["list"]),
        ("stop_token_ids", [-1], ["0"]),
        ("stream", "yes", ["boolean"]),
        ("stream_options", {"include_usage": True}, ["stream: true"]),
        ("logprobs", 3, ["boolean"]),
        ("top_logprobs", 21, ["20"]),
        ("top_logprobs", 5, ["logprobs: true"]),
        ("messages", [], ["at least 1"]),
        ("messages", "hi", ["list"]),
        ("messages", ["hi"], ["object"]),
        ("model", "", ["empty"]),
        ("model", 5, ["string"]),
        ("tools", "all", ["list"]),
        ("tool_choice", "required", ["only allowed with tools"]),
        ("functions", [{"name": "f"}], ["not supported"]),
        ("modalities", ["text", "audio"], ["not supported"]),
        ("guided_regex", 5, ["string"]),
    ],
)
def test_a_wrong_chat_field_is_named_with_its_limit(field: str, value: object, words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**{field: value})
    assert caught.value.param is not None
    assert caught.value.param.split(".")[0] == field
    assert field in caught.value.message
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", []),
        ("prompt", 5),
        ("prompt", ["a", 1]),
        ("prompt", [[1], "a"]),
        ("prompt", [1, True]),
        ("prompt", [1.5]),
        ("logprobs", 21),
        ("logprobs", True),
        ("max_tokens", 0),
        ("best_of", 0),
        ("suffix", "end"),
        ("echo", 1),
    ],
)
def test_a_wrong_completion_field_is_named(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize("name", ["model", "messages"])
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is required"):
        parse(ChatCompletionRequest, json.dumps({k: v for k, v in CHAT.items() if k != name}).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b'{"model": "m",}',
        b'{"temperature": NaN}',
        b"\xff",
        b'{"a":"\\ud800"}',
        b"[" * 9999,
    ],
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        parse(ChatCompletionRequest, body)


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="JSON object"):
        parse(CompletionRequest, body)


def test_numbers_beyond_floats_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="temperature"):
        parse(ChatCompletionRequest, b'{"model":"m","messages":[{}],"temperature":1e999}')


def test_null_means_the_default_for_every_field() -> None:
    names = [name for name in ChatCompletionRequest.model_fields if name not in ("model", "messages")]
    nulls = dict.fromkeys([*names, *ChatCompletionRequest.unsupported])
    assert chat(**nulls) == chat()
    names = [name for name in CompletionRequest.model_fields if name not in ("model", "prompt")]
    assert completion(**dict.fromkeys(names)) == completion()


def test_unknown_fields_and_unsupported_ones_that_ask_for_nothing_are_ignored() -> None:
    harmless = {
        "functions": [],
        "modalities": ["text"],
    }
    assert chat(store=True, metadata={"a": 1}, service_tier="auto", **harmless) == chat()
    assert completion(suffix="", best_of=1) == completion(best_of=1)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""])],
)
def test_every_form_of_prompt_becomes_a_list_of_prompts(given: object, prompts: list[Any]) -> None:
    assert completion(prompt=given).prompt == prompts


def test_one_stop_string_becomes_a_list() -> None:
    assert chat(stop="\n").stop == ["\n"]
    assert chat(stop=["a", "b"]).stop == ["a", "b"]
    assert chat(stop=[]).stop == []


def test_integers_are_taken_for_numbers() -> None:
    assert chat(temperature=1, top_p=1).temperature == 1.0


def test_usage_is_streamed_only_when_asked_for() -> None:
    assert not chat(stream=True).include_usage
    assert not chat(stream=True, stream_options={"include_usage": None}).include_usage
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
