"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import json

import pytest

from router.api.errors import error_response
from router.api.sse import error_event
from workers.errors import ContextTooLong, HeadraceError, InvalidRequest, NoWorker, Overloaded, UnknownModel


@pytest.mark.parametrize(
    ("error", "status", "body", "retry_after"),
    [
        (
            InvalidRequest("n is wrong", param="n"),
            400,
            {"message": "n is wrong", "type": "invalid_request_error", "param": "n", "code": None},
            None,
        ),
        (
            ContextTooLong("too long"),
            400,
            {
                "message": "too long",
                "type": "invalid_request_error",
                "param": None,
                "code": "context_length_exceeded",
            },
            None,
        ),
        (
            UnknownModel("no such model", param="model"),
            404,
            {
                "message": "no such model",
                "type": "invalid_request_error",
                "param": "model",
                "code": "model_not_found",
            },
            None,
        ),
        (
            NoWorker("none lives", retry_after_s=2.1),
            503,
            {"message": "none lives", "type": "service_unavailable", "param": None, "code": "no_worker"},
            "3",
        ),
        (
            Overloaded("full", retry_after_s=0.01),
            429,
            {"message": "full", "type": "rate_limit_error", "param": None, "code": "overloaded"},
            "1",
        ),
    ],
)
def test_an_error_has_openais_shape(
    error: HeadraceError, status: int, body: dict[str, str | None], retry_after: str | None
) -> None:
    response = error_response(error)
    assert (response.status, response.retry_after) == (status, retry_after)
    assert json.loads(response.body) == {"error": body}


def test_an_unexpected_exception_tells_the_client_nothing() -> None:
    response = error_response(RuntimeError("/secret/path"))
    assert response.status == 500
    assert b"secret" not in response.body
    assert json.loads(response.body)["error"]["type"] == "internal_error"


def test_an_error_amid_a_stream_is_one_event() -> None:
    event = error_event(InvalidRequest("one\ntwo"))
    assert event.startswith(b'data: {"error":{')
    assert event.count(b"\n") == 2
    assert event.endswith(b"\n\n")
