"""What clients may ask for: OpenAI's request bodies, with the extensions that open-model servers share.

A null field means its default. Fields that nobody knows are ignored, as OpenAI-compatible servers do, but
a field that would change the answer and cannot be honoured is refused by name. Every refusal is an
InvalidRequest whose `param` is the dotted path of the field.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, from_json

from workers.errors import InvalidRequest

MAX_CHOICES = 128  # OpenAI's limit on n
MAX_STOPS = 16  # OpenAI allows 4; agents ask for more
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROBS = 20
MAX_TOOLS = 128  # OpenAI's limit
MAX_CHOICES_OF_TEXT = 10_000
FUNCTION_NAME = "^[a-zA-Z0-9_-]{1,64}$"  # OpenAI's rule

_INT64 = 1 << 63
_NOTHING: tuple[Any, ...] = (False, [], {}, "")

JsonDict = dict[str, Any]
Message = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "role": {"type": "string", "minLength": 1},
                "content": {
                    "anyOf": [
                        {"type": "string"},
                        {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                                "required": ["type", "text"],
                            },
                        },
                        {"type": "null"},
                    ]
                },
                "tool_calls": {"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]},
            },
            "required": ["role"],
        }
    ),
]
TokenId = Annotated[int, Field(ge=0)]
_STOP_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
_TOKENS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA: JsonDict = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        _TOKENS_SCHEMA,
        {"type": "array", "items": _TOKENS_SCHEMA, "minItems": 1},
    ]
}
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class _Part(BaseModel):
    """An object within a request."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, populate_by_name=True)


class JsonSchemaFormat(_Part):
    """`strict` changes nothing: a schema is always kept."""

    name: str | None = Field(None, max_length=256)
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(_Part):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _complete(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("must have json_schema with type json_schema")
        return self


class StructuredOutputs(_Part):
    json_: str | dict[str, Any] | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = Field(None, min_length=1, max_length=MAX_CHOICES_OF_TEXT)
    grammar: str | None = None


class FunctionDefinition(_Part):
    name: str = Field(pattern=FUNCTION_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Part):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(_Part):
    name: str = Field(min_length=1)


class ToolChoice(_Part):
    """Clients send "none", "auto" or "required" as a bare word."""

    type: Literal["none", "auto", "required", "function"]
    function: FunctionName | None = None

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        return {"type": value} if isinstance(value, str) and value != "function" else value

    @model_validator(mode="after")
    def _complete(self) -> ToolChoice:
        if self.type == "function" and self.function is None:
            raise ValueError("must have function with type function")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        named = handler.resolve_ref_schema(handler(core))
        named["properties"]["type"] = {"const": "function", "type": "string"}
        named["required"] = ["type", "function"]
        return {"anyOf": [{"enum": ["none", "auto", "required"], "type": "string"}, named]}


class Body(BaseModel):
    """A request's body. `unsupported` maps a field to the values that ask for nothing of it."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, frozen=True)

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}

    model: str = Field(min_length=1)

    def check(self) -> None:
        """The rules between fields that hold whatever the model is. Raises InvalidRequest."""


class _GenerationRequest(Body):
    """What both endpoints take."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "use_beam_search": _NOTHING,
        "prompt_logprobs": (),
    }

    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(1.0, ge=0.01, le=10.0)
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]] = {}
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    stop: Annotated[
        list[StopString],
        WithJsonSchema(
            {"anyOf": [_STOP_SCHEMA, {"type": "array", "items": _STOP_SCHEMA, "maxItems": MAX_STOPS}]}
        ),
    ] = Field([], max_length=MAX_STOPS)
    stop_token_ids: list[TokenId] = Field([], max_length=MAX_STOP_TOKEN_IDS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    user: str | None = None
    response_format: ResponseFormat | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(None, min_length=1, max_length=MAX_CHOICES_OF_TEXT)
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed with stream: true", param="stream_options")


class ChatCompletionRequest(_GenerationRequest):
    """The body of POST /v1/chat/completions."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = _GenerationRequest.unsupported | {
        "functions": _NOTHING,
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "web_search_options": (),
        "chat_template": (),
        "documents": _NOTHING,
        "echo": _NOTHING,
        "continue_final_message": _NOTHING,
    }

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    tools: list[Tool] = Field([], max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs is only allowed with logprobs: true", param="top_logprobs")
        _check_tools(self)


class CompletionRequest(_GenerationRequest):
    """The body of POST /v1/completions; `prompt` is a list of texts or of lists of token ids."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = _GenerationRequest.unsupported | {
        "suffix": _NOTHING,  # of models here none was trained to fill in between
        "prompt_embeds": (),
    }

    prompt: Annotated[list[str] | list[list[int]], WithJsonSchema(_PROMPT_SCHEMA)] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=0)
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool = False

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo:
            raise InvalidRequest(
                "max_tokens must be at least 1 without echo, but 0 was given", param="max_tokens"
            )
        if self.best_of is None or self.best_of == self.n:
            return
        if self.best_of < self.n:
            raise InvalidRequest(
                f"best_of must be at least n, which is {self.n}, but {self.best_of} was given",
                param="best_of",
            )
        if self.stream:
            raise InvalidRequest(
                "best_of cannot be streamed: the best are known only when all are there", param="best_of"
            )

    @property
    def num_sampled(self) -> int:
        """Sequences to sample for each prompt; the best n of them are returned."""
        return max(self.n, self.best_of or 0)

    @field_validator("prompt", mode="plain")
    @classmethod
    def _prompts(cls, value: object) -> object:
        """One prompt becomes a list of one."""
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and value:
            if all(isinstance(item, str) for item in value) or all(_is_ids(item) for item in value):
                return value
            if _is_ids(value):
                return [value]
        raise ValueError("must be a string, a list of strings, a list of token ids or a list of such lists")


Request = TypeVar("Request", bound=Body)


def parse(model: type[Request], body: bytes) -> Request:
    """The request in `body`. Raises InvalidRequest for the first thing that is wrong with it."""
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidRequest(f"the request body must be a JSON object, but {_shown(data)} was given")
    data = {name: value for name, value in data.items() if value is not None}
    for name in data.keys() & model.unsupported.keys():
        if data[name] not in model.unsupported[name]:
            raise InvalidRequest(f"{name} is not supported by this server; leave it out", param=name)
    try:
        request = model.model_validate(data)
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False)[0]) from error
    request.check()
    return request


def _check_tools(request: ChatCompletionRequest) -> None:
    names = [tool.function.name for tool in request.tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(
                f"tools.{index}.function.name must differ from the others', but {name!r} comes twice",
                param=f"tools.{index}.function.name",
            )
    choice = request.tool_choice
    if choice is None or choice.type == "none":
        return
    if not names and choice.type != "auto":
        raise InvalidRequest("tool_choice is only allowed with tools", param="tool_choice")
    if choice.function is not None and choice.function.name not in names:
        raise InvalidRequest(
            f"tool_choice names the function {choice.function.name[:80]!r}, but tools has {', '.join(names)}",
            param="tool_choice.function.name",
        )


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _invalid(error: ErrorDetails) -> InvalidRequest:
    param = ".".join(str(part) for part in error["loc"])
    limits, actual = error.get("ctx", {}), error["input"]
    match error["type"]:
        case "missing":
            return InvalidRequest(f"{param} is required", param=param)
        case "too_short":
            rule = f"must have at least {limits['min_length']}, but {limits['actual_length']} were given"
        case "too_long":
            rule = f"must have at most {limits['max_length']}, but {limits['actual_length']} were given"
        case "string_too_short":
            rule = "must not be an empty string"
        case "string_too_long":
            rule = f"must have at most {limits['max_length']} characters, but {len(actual)} were given"
        case "dict_type" | "model_type":
            rule = f"must be an object, but {_shown(actual)} was given"
        case _:
            rule = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
            rule += f", but {_shown(actual)} was given"
    return InvalidRequest(f"{param} {rule}", param=param)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
