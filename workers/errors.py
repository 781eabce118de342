"""Every error that Headrace reports, as one tree; each leaf has its HTTP status.

    HeadraceError
    ├── ConfigError            start-up: the configuration or the model source is wrong
    ├── InvalidRequest    400  a field of the request is wrong; `param` names it
    │   ├── ContextTooLong     prompt + max_tokens pass the model's context
    │   ├── TemplateError      the model's chat template refused the messages
    │   └── GrammarError       the schema, expression or grammar cannot be compiled or followed
    ├── UnknownModel      404  the model is not served here
    ├── BodyTooLarge      413  the request body passes the limit
    ├── Overloaded        429  the queue is full; come back after `retry_after_s`
    ├── EngineFault       500  a step failed; the requests in it are lost
    ├── WorkerLost        503  the worker died or fell silent while it answered
    ├── GangLost          503  a rank of the worker died, hangs or failed; the worker ends with it
    └── NoWorker          503  no live worker serves the model; come back after `retry_after_s`

A message says what was wrong, the limit, the actual value and the remedy.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose; `str(error)` is fit to show to a user."""

    status = 500
    type = "internal_error"  # `error.type` in OpenAI's error body
    code: str | None = None  # `error.code` in OpenAI's error body

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class ConfigError(HeadraceError):
    """The configuration, the command line or the model source is wrong; raised before anything is served."""

    type = "config_error"


class InvalidRequest(HeadraceError):
    """The client's request is wrong; `param` names the field."""

    status = 400
    type = "invalid_request_error"


class ContextTooLong(InvalidRequest):
    """Prompt and max_tokens together pass the model's context."""

    code = "context_length_exceeded"


class TemplateError(InvalidRequest):
    """The model's chat template refused the messages."""

    code = "template_error"


class GrammarError(InvalidRequest):
    """The output's schema, expression or grammar cannot be compiled, or has become too much to follow."""

    code = "invalid_grammar"


class UnknownModel(HeadraceError):
    """The model named by the request is not served here."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class BodyTooLarge(HeadraceError):
    """The request body passes the configured limit."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class Overloaded(HeadraceError):
    """The queue cannot take the request now."""

    status = 429
    type = "rate_limit_error"
    code = "overloaded"


class EngineFault(HeadraceError):
    """A forward step failed; its requests are lost, the engine goes on or restarts."""

    code = "engine_fault"


class WorkerLost(HeadraceError):
    """The worker that answered this request died or fell silent."""

    status = 503
    type = "service_unavailable"
    code = "worker_lost"


class GangLost(HeadraceError):
    """A rank of this worker's gang died, hangs or failed: no step can be computed any more."""

    status = 503
    type = "service_unavailable"
    code = "worker_lost"


class NoWorker(HeadraceError):
    """No live worker serves the model."""

    status = 503
    type = "service_unavailable"
    code = "no_worker"


_BY_CODE: dict[str | None, type[HeadraceError]] = {
    leaf.code: leaf
    for leaf in (ContextTooLong, TemplateError, GrammarError, Overloaded, EngineFault, WorkerLost, NoWorker)
}


def error_of(code: str | None, message: str) -> HeadraceError:
    """The error that a worker told by its code; one that is not known is the engine's fault."""
    return _BY_CODE.get(code, EngineFault)(message)
