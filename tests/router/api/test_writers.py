"""Bodies and chunks: OpenAI's shape, read with OpenAI's own types; streamed equals whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from router.api.answer import Answer
from router.api.chat import chat_writer
from router.api.completions import completion_writer
from router.api.models import model_body, models_body, unknown_model
from router.api.prepared import ModelLimits, prepare_chat, prepare_completion
from router.api.schema import ChatCompletionRequest, CompletionRequest
from router.api.writer import new_id
from router.text.tokenizer import ModelText
from tests.router.api.worker import deltas
from workers.wire import Delta, Logprob

LIMITS = ModelLimits(max_context_tokens=8192, vocab_size=49152)
EOS = 2
TEXT = ' "quoted"\n\tand 日本語 🧬 \u2028 end'


def chat_bytes(text: ModelText, sent: list[Delta], **fields: Any) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    request = ChatCompletionRequest(model="m", messages=messages, **fields)
    prepared = prepare_chat(request, text, LIMITS)
    answer, writer = Answer(prepared, text), chat_writer(prepared, text, "chatcmpl-1", 1_700_000_000)
    return b"".join(writer.add(*answer.feed(0, delta)) for delta in sent) + writer.end(answer.usage)


def completion_bytes(text: ModelText, sent: list[Delta], **fields: Any) -> bytes:
    request = CompletionRequest(model="m", **({"prompt": ["Once"]} | fields))
    prepared = prepare_completion(request, text, LIMITS)
    answer, writer = Answer(prepared, text), completion_writer(prepared, text, "cmpl-1", 1_700_000_000)
    return b"".join(writer.add(*answer.feed(0, delta)) for delta in sent) + writer.end(answer.usage)


def events(stream: bytes) -> list[bytes]:
    """The data of each event; the stream must be well formed and end with [DONE]."""
    *parts, rest = stream.split(b"\n\n")
    assert rest == b""
    assert all(part.startswith(b"data: ") and b"\n" not in part for part in parts)
    assert parts[-1] == b"data: [DONE]"
    return [part.removeprefix(b"data: ") for part in parts[:-1]]


def chat_chunks(stream: bytes) -> list[ChatCompletionChunk]:
    return [ChatCompletionChunk.model_validate_json(data, strict=True) for data in events(stream)]


def sequences(text: ModelText, n: int = 1, *, with_logprobs: bool = False) -> list[Delta]:
    """n sequences of the same tokens, a step at a time."""
    tokens = [*text.encode(TEXT), EOS]
    each = [deltas(tokens, index=i, finish="stop", with_logprobs=with_logprobs) for i in range(n)]
    return [delta for step in zip(*each, strict=True) for delta in step]


def test_a_whole_chat_answer(smollm2: ModelText) -> None:
    body = chat_bytes(smollm2, sequences(smollm2, 2), n=2)
    answer = ChatCompletion.model_validate_json(body, strict=True)
    assert (answer.id, answer.object, answer.model, answer.created) == (
        "chatcmpl-1",
        "chat.completion",
        "m",
        1_700_000_000,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 16
    raw = json.loads(body)["choices"][0]
    assert raw["logprobs"] is None
    assert raw["message"] == {"content": TEXT, "role": "assistant", "refusal": None}


def test_a_streamed_chat_answer(smollm2: ModelText) -> None:
    stream = chat_bytes(smollm2, sequences(smollm2, 2), n=2, stream=True)
    chunks = chat_chunks(stream)
    for index in (0, 1):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert all(choice.delta.role is None for choice in mine[1:])
        assert "".join(choice.delta.content or "" for choice in mine) == TEXT
        assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-1"}
    assert all("usage" not in json.loads(data) for data in events(stream))


@pytest.mark.parametrize("make", [chat_bytes, completion_bytes])
def test_usage_comes_last_without_choices_when_asked_for(smollm2: ModelText, make: Any) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = [json.loads(data) for data in events(make(smollm2, sequences(smollm2), **options))]
    assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(smollm2.encode(TEXT)) + 1


def test_log_probabilities_of_a_chat_streamed_and_whole_are_the_same(smollm2: ModelText) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
    sent = sequences(smollm2, with_logprobs=True)
    whole = (
        ChatCompletion.model_validate_json(chat_bytes(smollm2, sent, **fields), strict=True)
        .choices[0]
        .logprobs
    )
    assert whole is not None
    assert whole.content is not None
    streamed = [
        entry
        for chunk in chat_chunks(chat_bytes(smollm2, sent, stream=True, **fields))
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert [entry.model_dump() for entry in streamed] == [entry.model_dump() for entry in whole.content]
    assert b"".join(bytes(entry.bytes or []) for entry in streamed).decode() == TEXT
    assert len(streamed[0].top_logprobs) == 1


def test_a_whole_completion_with_echo_and_log_probabilities(smollm2: ModelText) -> None:
    prompt, tokens = smollm2.encode("Once"), smollm2.encode(" upon a 🧬")
    sent = deltas(tokens, with_logprobs=True, prompt=prompt)
    body = completion_bytes(smollm2, sent, echo=True, logprobs=1)
    (choice,) = json.loads(body)["choices"]
    assert choice["text"] == "Once upon a 🧬"
    logprobs = choice["logprobs"]
    assert {len(column) for column in logprobs.values()} == {len(prompt) + len(tokens)}
    assert logprobs["tokens"][:3] == ["Once", " upon", " a"]
    assert logprobs["tokens"][-1].startswith("bytes:\\x")
    assert logprobs["text_offset"][:3] == [0, 4, 9]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert len(logprobs["top_logprobs"][1]) == 2  # the best one and the token itself


def test_a_streamed_completion_equals_the_whole_one(smollm2: ModelText) -> None:
    fields: dict[str, Any] = {"n": 2, "logprobs": 1, "stop": ["語"]}
    sent = sequences(smollm2, 2, with_logprobs=True)
    body = completion_bytes(smollm2, sent, **fields)
    whole = json.loads(body)["choices"]
    assert Completion.model_validate_json(body, strict=True).object == "text_completion"
    chunks = [json.loads(data) for data in events(completion_bytes(smollm2, sent, stream=True, **fields))]
    assert {(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks} == {
        ("cmpl-1", "text_completion", 1_700_000_000, "m")
    }
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == whole[index]["text"] == TEXT[: TEXT.index("語")]
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["stop"]
        for name, column in whole[index]["logprobs"].items():
            assert [
                item for choice in mine if choice["logprobs"] for item in choice["logprobs"][name]
            ] == column


def test_nothing_goes_out_while_text_is_held_back(smollm2: ModelText) -> None:
    request = CompletionRequest(model="m", prompt=["a"], stop=["x y"], stream=True)
    prepared = prepare_completion(request, smollm2, LIMITS)
    answer, writer = Answer(prepared, smollm2), completion_writer(prepared, smollm2, "cmpl-1", 0)
    (token_id,) = smollm2.encode("x")
    assert writer.add(*answer.feed(0, Delta("r", 0, [token_id]))) == b""


def test_a_token_that_cannot_come_has_a_finite_log_probability(smollm2: ModelText) -> None:
    sent = [Delta("r", 0, [5], "length", [Logprob(5, float("-inf"), [(6, float("-inf"))])])]
    body = json.loads(chat_bytes(smollm2, sent, logprobs=True, top_logprobs=1))
    (entry,) = body["choices"][0]["logprobs"]["content"]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)


def test_models(smollm2: ModelText) -> None:
    body = json.loads(models_body([smollm2.card]))
    assert body["object"] == "list"
    assert Model.model_validate(body["data"][0]) == Model.model_validate_json(model_body(smollm2.card))
    error = unknown_model("gpt-9", ["b", "a"])
    assert (error.status, error.param) == (404, "model")
    assert "'gpt-9'" in error.message
    assert "a, b" in error.message


def test_ids_are_new_each_time() -> None:
    assert new_id("cmpl").startswith("cmpl-")
    assert new_id("cmpl") != new_id("cmpl")
