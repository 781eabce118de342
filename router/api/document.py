"""The OpenAPI document of exactly what is served, made from the very types that read and write the bodies."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic.json_schema import models_json_schema

from router.api.chat import ChatChoice
from router.api.completions import CompletionChoice
from router.api.errors import ErrorBody
from router.api.models import Model, ModelList
from router.api.schema import Body as RequestBody
from router.api.schema import ChatCompletionRequest, CompletionRequest
from router.api.tokens import Detokenized, DetokenizeRequest, TokenizeRequest, Tokens
from router.api.writer import Body

Json = dict[str, Any]

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    400: "The request is wrong; `param` names the field.",
    404: "The model is not served here.",
    413: "The body passes the limit.",
    429: "Too much waits already; come back after Retry-After seconds.",
    500: "The engine failed on this request.",
    503: "No worker can answer now; come back after Retry-After seconds.",
}


@dataclass(frozen=True, slots=True)
class _Operation:
    path: str
    summary: str
    request: type[RequestBody]
    response: Any
    streams: bool = False


_OPERATIONS = (
    _Operation(
        "/v1/chat/completions", "Answer a conversation.", ChatCompletionRequest, Body[ChatChoice], True
    ),
    _Operation("/v1/completions", "Go on with prompts.", CompletionRequest, Body[CompletionChoice], True),
    _Operation("/tokenize", "The tokens of a prompt or conversation.", TokenizeRequest, Tokens),
    _Operation("/detokenize", "The text of tokens.", DetokenizeRequest, Detokenized),
)
_GETS: tuple[tuple[str, str, Any], ...] = (
    ("/v1/models", "What is served.", ModelList),
    ("/v1/models/{model}", "One model.", Model),
)


@functools.cache
def document_body(models: tuple[str, ...]) -> bytes:
    """The document in JSON, for a server of these models."""
    return msgspec.json.encode(document(models))


def document(models: tuple[str, ...]) -> Json:
    """An OpenAPI 3.1 document."""
    name = {"type": "string", "enum": list(models)} if models else {"type": "string", "minLength": 1}
    requests = list({operation.request for operation in _OPERATIONS})
    answers = [
        *(operation.response for operation in _OPERATIONS),
        *(answer for *_, answer in _GETS),
        ErrorBody,
    ]
    _, definitions = models_json_schema(
        [(request, "validation") for request in requests], ref_template=_REFERENCE.replace("name", "model")
    )
    references, components = msgspec.json.schema_components(answers, ref_template=_REFERENCE)
    schemas = {**components, **definitions.get("$defs", {})}
    for request in requests:
        _allow_null(schemas[request.__name__])
        schemas[request.__name__]["properties"]["model"] = name
    by_answer = dict(zip(map(repr, answers), references, strict=True))
    paths: dict[str, Json] = {}
    for operation in _OPERATIONS:
        paths[operation.path] = {"post": _post(operation, by_answer)}
    for path, summary, answer in _GETS:
        paths[path] = {"get": _get(path, summary, by_answer[repr(answer)], by_answer, name)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headrace", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _allow_null(schema: Json) -> None:
    """A null field means its default, whatever its type."""
    for name, field in schema["properties"].items():
        if name not in schema.get("required", ()):
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}


def _post(operation: _Operation, by_answer: dict[str, Json]) -> Json:
    content: Json = {"application/json": {"schema": by_answer[repr(operation.response)]}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "operationId": operation.path.strip("/").replace("/", "_").replace("v1_", ""),
        "summary": operation.summary,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": f"#/components/schemas/{operation.request.__name__}"}}
            },
        },
        "responses": {"200": {"description": "The answer.", "content": content}} | _failures(by_answer),
    }


def _get(path: str, summary: str, reference: Json, by_answer: dict[str, Json], name: Json) -> Json:
    content = {"application/json": {"schema": reference}}
    operation: Json = {
        "operationId": path.strip("/").replace("/", "_").replace("v1_", "").replace("{", "").replace("}", ""),
        "summary": summary,
        "responses": {"200": {"description": "The answer.", "content": content}} | _failures(by_answer),
    }
    if "{model}" in path:
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": name}]
    return operation


def _failures(by_answer: dict[str, Json]) -> Json:
    content = {"application/json": {"schema": by_answer[repr(ErrorBody)]}}
    return {str(status): {"description": text, "content": content} for status, text in _ERRORS.items()}
