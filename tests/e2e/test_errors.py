"""Bad input answers in OpenAI's error shape, and the next good request is served."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.e2e.cluster import Cluster

MODEL = "smollm2-135m"
GOOD: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def post(cluster: Cluster, path: str, body: bytes | dict[str, Any]) -> tuple[int, dict[str, Any], Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        cluster.url + path, data=data, headers={"content-type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response), response.headers
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), error.headers


TOOL = {"type": "function", "function": {"name": "weather"}}

BAD: dict[str, tuple[bytes | dict[str, Any], int, str | None, list[str]]] = {
    "malformed JSON": (b'{"model": ', 400, None, ["JSON"]),
    "wrong type": ({**GOOD, "max_tokens": "many"}, 400, "max_tokens", []),
    "out of range": ({**GOOD, "temperature": 3}, 400, "temperature", ["2"]),
    "unknown model": ({**GOOD, "model": "gpt-9"}, 404, "model", ["gpt-9", MODEL]),
    "no model": ({"messages": GOOD["messages"]}, 400, "model", []),
    "over the context": ({**GOOD, "max_tokens": 9000}, 400, None, ["9000", "8192"]),
    "empty messages": ({**GOOD, "messages": []}, 400, "messages", []),
    "an unsupported field": ({**GOOD, "functions": [{"name": "f"}]}, 400, "functions", []),
    "a tool without its function": ({**GOOD, "tools": [{"type": "function"}]}, 400, "tools.0.function", []),
    "a tool that is not there": (
        {**GOOD, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        400,
        "tool_choice.function.name",
        ["'g'", "weather"],
    ),
    "no schema": ({**GOOD, "response_format": {"type": "json_schema"}}, 400, "response_format", []),
    "a schema that is none": (
        {**GOOD, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strnig"}}}},
        400,
        "response_format",
        ["strnig"],
    ),
    "a broken expression": ({**GOOD, "guided_regex": "("}, 400, "guided_regex", ["regex"]),
    "parameters that are no schema": (
        {
            **GOOD,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
            "tool_choice": "required",
        },
        400,
        "tools",
        [],
    ),
    "two forms at once": (
        {**GOOD, "guided_regex": "a", "guided_choice": ["b"]},
        400,
        "guided_choice",
        ["guided_regex"],
    ),
    "template refuses": ({**GOOD, "messages": [{"role": "user"}]}, 400, None, []),
    "body over the limit": (
        {**GOOD, "messages": [{"role": "user", "content": "x" * 300_000}]},
        413,
        None,
        ["262144"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_the_engine_goes_on(cluster: Cluster, name: str) -> None:
    body, status, param, words = BAD[name]
    answered, error, _ = post(cluster, "/v1/chat/completions", body)
    assert answered == status, error
    assert set(error["error"]) >= {"message", "type", "param", "code"}
    if param is not None:
        assert (error["error"]["param"] or "").startswith(param)
    for word in words:
        assert word in error["error"]["message"]
    assert post(cluster, "/v1/chat/completions", GOOD)[0] == 200


def test_unknown_paths_and_methods_answer_in_the_same_shape(cluster: Cluster) -> None:
    assert post(cluster, "/v1/embeddings", GOOD)[0] == 404
    assert set(post(cluster, "/v1/embeddings", GOOD)[1]["error"]) >= {"message", "type"}
    assert post(cluster, "/v1/models", GOOD)[0] == 405
