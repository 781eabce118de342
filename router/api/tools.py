"""Which tools a chat may call, and how: what the template is told, what the output must be, how it is read.

A call that is forced, by `required` or by its name, is forced by a grammar, so that any model makes it; one
that is free is whatever the model writes in its family's dialect.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from router.api.schema import ChatCompletionRequest, Tool
from router.api.structured import lark_string
from router.message.dialect import HERMES
from router.message.parser import MessageForm
from router.text.tokenizer import ModelText
from workers.errors import InvalidRequest
from workers.sampling.params import JSON_WHITESPACE, GrammarSpec

MAX_PARALLEL_CALLS = 16  # that a grammar lets a model make
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """`tools` for the template; `form` by which the output is read; `grammar` if calls are forced."""

    tools: list[dict[str, Any]]
    form: MessageForm
    grammar: GrammarSpec | None


def plan_tools(
    request: ChatCompletionRequest, text: ModelText, asked: tuple[GrammarSpec, str] | None
) -> ToolPlan:
    """`asked` is the grammar of `response_format` and the like, with its field's name: an answer that is no
    call must obey it. Raises InvalidRequest if it is one that calls cannot stand beside."""
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools]
    grammar = asked[0] if asked is not None else None
    form = MessageForm(may_think=text.may_think and grammar is None)
    choice = request.tool_choice.type if request.tool_choice is not None else "auto"
    if not tools or choice == "none":
        return ToolPlan(tools, form, grammar)
    max_calls = None if request.parallel_tool_calls else 1
    if choice == "auto" and asked is None:
        return ToolPlan(tools, replace(form, dialect=text.dialect, max_calls=max_calls), None)
    callable_, num_calls = request.tools, max_calls or MAX_PARALLEL_CALLS
    if request.tool_choice is not None and request.tool_choice.function is not None:
        name = request.tool_choice.function.name
        callable_, num_calls = [tool for tool in callable_ if tool.function.name == name], 1
    lark = _calls(callable_, num_calls)
    if choice == "auto" and asked is not None:
        lark = f"start: calls | answer\nanswer: %json {_answer(*asked)}\n" + lark
    else:
        lark = "start: calls\n" + lark
    form = MessageForm(HERMES, max_calls=max_calls)  # a grammar can make any model write it
    return ToolPlan(tools, form, GrammarSpec("grammar", lark))


def _calls(tools: list[Tool], num_calls: int) -> str:
    """Rules for `calls`: one to `num_calls` calls of these tools."""
    more = f' ("\\n" call){{0,{num_calls - 1}}}' if num_calls > 1 else ""
    rules = [f"calls: call{more}", "call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
    tail = lark_string(f"}}\n{HERMES.closing}")
    for index, tool in enumerate(tools):
        head = f'{HERMES.opening}\n{{"name": {json.dumps(tool.function.name)}, "arguments": '
        rules.append(f"call_{index}: {lark_string(head)} args_{index} {tail}")
        rules.append(f"args_{index}: %json {_whitespaced(tool.function.parameters or _NO_PARAMETERS)}")
    return "\n".join(rules) + "\n"


def _answer(grammar: GrammarSpec, param: str) -> str:
    if grammar.kind != "json_schema":
        raise InvalidRequest(
            f"{param} cannot go with tools, because a call would break it; set tool_choice to none or leave "
            "one of them out",
            param=param,
        )
    return _whitespaced(json.loads(grammar.source))


def _whitespaced(schema: Any) -> str:
    """The schema with the bounds on white space that a schema by itself gets from the compiler."""
    options = {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
    return json.dumps(
        {**options, **(schema if isinstance(schema, dict) else {"anyOf": [schema]})}, ensure_ascii=False
    )
