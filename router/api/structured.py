"""What form an output must have, from the fields by which clients ask for one.

OpenAI's `response_format`, and the `guided_*` and `structured_outputs` fields that open-model servers share,
all become one grammar. Whether it can be compiled is the worker's to say.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from workers.errors import InvalidRequest
from workers.sampling.params import GrammarSpec

if TYPE_CHECKING:
    from router.api.schema import ChatCompletionRequest, CompletionRequest

MAX_GRAMMAR_CHARACTERS = 256 << 10
ANY_OBJECT = {"type": "object"}


def asked_grammar(request: ChatCompletionRequest | CompletionRequest) -> tuple[GrammarSpec, str] | None:
    """The grammar of the output and the field that asks for it; None if there is none.

    Raises InvalidRequest if several fields ask, or for a combination that could never end well."""
    asked = _asked(request)
    if not asked:
        return None
    if len(asked) > 1:
        names = ", ".join(param for _, param in asked)
        raise InvalidRequest(f"only one of these can be asked for at a time: {names}", param=asked[1][1])
    spec, param = asked[0]
    if len(spec.source) > MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequest(
            f"{param} must have at most {MAX_GRAMMAR_CHARACTERS} characters, but {len(spec.source)} were "
            "given",
            param=param,
        )
    for name, value in (("min_tokens", request.min_tokens), ("ignore_eos", request.ignore_eos)):
        if value:
            raise InvalidRequest(
                f"{name} cannot go with {param}, which says where the output ends; leave it out", param=name
            )
    return spec, param


def json_schema(schema: Any) -> GrammarSpec:
    """The grammar of all JSON texts that are valid under `schema`."""
    return GrammarSpec("json_schema", json.dumps(schema, ensure_ascii=False))


def choice(texts: list[str]) -> GrammarSpec:
    """The grammar of exactly these texts."""
    return GrammarSpec("grammar", "start: " + " | ".join(lark_string(text) for text in texts) + "\n")


def lark_string(text: str) -> str:
    """The text as a literal of the grammar notation."""
    return json.dumps(text, ensure_ascii=False)


def _asked(request: ChatCompletionRequest | CompletionRequest) -> list[tuple[GrammarSpec, str]]:
    asked = []
    if (given := request.response_format) is not None and given.type != "text":
        schema = given.json_schema.schema_ if given.json_schema is not None else ANY_OBJECT
        asked.append((json_schema(schema), "response_format"))
    if request.guided_json is not None:
        asked.append((_loose_json(request.guided_json, "guided_json"), "guided_json"))
    if request.guided_regex is not None:
        asked.append((GrammarSpec("regex", request.guided_regex), "guided_regex"))
    if request.guided_choice is not None:
        asked.append((choice(request.guided_choice), "guided_choice"))
    if request.guided_grammar is not None:
        asked.append((GrammarSpec("grammar", request.guided_grammar), "guided_grammar"))
    if (outputs := request.structured_outputs) is not None:
        param = "structured_outputs"
        if outputs.json_ is not None:
            asked.append((_loose_json(outputs.json_, f"{param}.json"), f"{param}.json"))
        if outputs.json_object:
            asked.append((json_schema(ANY_OBJECT), f"{param}.json_object"))
        if outputs.regex is not None:
            asked.append((GrammarSpec("regex", outputs.regex), f"{param}.regex"))
        if outputs.choice is not None:
            asked.append((choice(outputs.choice), f"{param}.choice"))
        if outputs.grammar is not None:
            asked.append((GrammarSpec("grammar", outputs.grammar), f"{param}.grammar"))
    return asked


def _loose_json(schema: str | dict[str, Any], param: str) -> GrammarSpec:
    """A schema that may come as its own JSON text."""
    if isinstance(schema, dict):
        return json_schema(schema)
    try:
        return json_schema(json.loads(schema))
    except ValueError as error:
        raise InvalidRequest(f"{param} must be a JSON schema: {error}", param=param) from error
