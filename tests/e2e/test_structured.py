"""Structured output and tools through the whole cluster, with the real openai client."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import jsonschema
import pytest
from openai import OpenAI
from pydantic import BaseModel

MODEL = "smollm2-135m"
MESSAGES: Any = [{"role": "user", "content": "What is the weather in Rome and in Oslo?"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The forecast of a city.", "parameters": SCHEMA},
    },
    {"type": "function", "function": {"name": "get_time", "description": "The time of day."}},
]


class Forecast(BaseModel):
    city: Literal["Rome", "Oslo"]
    degrees: int
    is_raining: bool


def test_response_format_holds_whole_and_streamed(client: OpenAI) -> None:
    fields: Any = {
        "model": MODEL,
        "messages": MESSAGES,
        "temperature": 1.0,
        "seed": 4,
        "n": 2,
        "max_tokens": 150,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "forecast", "strict": True, "schema": SCHEMA},
        },
    }
    whole = client.chat.completions.create(**fields)
    texts = ["", ""]
    for chunk in client.chat.completions.create(stream=True, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        assert choice.message.content == texts[choice.index]
        jsonschema.validate(json.loads(texts[choice.index]), SCHEMA)


def test_parse_returns_the_clients_own_model(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Forecast, max_tokens=100, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Forecast)


def test_json_object_is_an_object_or_cut(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Answer in JSON: name a city."}],
        response_format={"type": "json_object"},
        max_tokens=200,
        temperature=0,
    ).choices[0]
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content or ""), dict)
    else:
        assert answer.finish_reason == "length"
        assert (answer.message.content or "").startswith("{")


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"guided_regex": "[A-Z][a-z]{2,8}"}, "[A-Z][a-z]{2,8}"),
        ({"guided_choice": ["sunny", '"rainy"\n', "größer"]}, 'sunny|"rainy"\n|größer'),
        ({"guided_grammar": 'start: ("a" | "b"){3}'}, "[ab]{3}"),
        ({"structured_outputs": {"regex": "[0-9]{1,3} degrees"}}, "[0-9]{1,3} degrees"),
    ],
)
def test_the_extensions_of_open_model_servers_hold(
    client: OpenAI, extra: dict[str, Any], pattern: str
) -> None:
    for text in (
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra, max_tokens=60)
        .choices[0]
        .message.content,
        client.completions.create(model=MODEL, prompt="It is", extra_body=extra, max_tokens=60)
        .choices[0]
        .text,
    ):
        assert re.fullmatch(pattern, text or "")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_has_arguments_that_are_valid(client: OpenAI, choice: Any) -> None:
    fields: Any = {
        "model": MODEL,
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": choice,
        "temperature": 1.0,
        "seed": 1,
        "max_tokens": 400,
        "parallel_tool_calls": False,
    }
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    (call,) = whole.message.tool_calls or []
    assert call.type == "function"
    if choice != "required":
        assert call.function.name == "get_weather"
    if call.function.name == "get_weather":
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    name, arguments, ids, finish = "", "", set(), None
    for chunk in client.chat.completions.create(stream=True, **fields):
        delta = chunk.choices[0].delta
        assert not delta.content
        for part in delta.tool_calls or []:
            assert part.index == 0
            assert part.function is not None
            ids |= {part.id} if part.id else set()
            name += part.function.name or ""
            arguments += part.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert (name, arguments, finish) == (call.function.name, call.function.arguments, "tool_calls")
    assert len(ids) == 1


def test_parallel_calls_keep_their_order_and_ids(client: OpenAI) -> None:
    fields: Any = {
        "model": MODEL,
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": "required",
        "max_tokens": 900,
    }
    for seed in range(5):
        calls = client.chat.completions.create(**fields, seed=seed).choices[0].message.tool_calls or []
        if len(calls) > 1:
            break
    assert len({call.id for call in calls}) == len(calls) > 1
    streamed: dict[int, str] = {}
    for chunk in client.chat.completions.create(**fields, seed=seed, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            assert part.function is not None
            streamed[part.index] = streamed.get(part.index, "") + (part.function.arguments or "")
    assert list(streamed.values()) == [call.function.arguments for call in calls if call.type == "function"]


def test_results_of_tools_go_back_through_the_template(client: OpenAI) -> None:
    messages: Any = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "abc", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "abc", "content": "It is noon."},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, max_tokens=20)
    without = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    assert answer.usage is not None
    assert without.usage is not None
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens + 100


def test_without_a_choice_the_model_may_just_talk(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hello!"}],
        tools=TOOLS,
        max_tokens=40,
        temperature=0,
    ).choices[0]
    assert answer.message.content or answer.message.tool_calls
    assert answer.finish_reason in ("stop", "length", "tool_calls")
