"""Tools and their calls as chat templates know them, and as words for templates that know none.

Clients write a call's arguments as JSON within a string; templates want the value. A template that never
mentions tools gets them in the system message, calls as Hermes writes them, and results as what the user
says, which is how most models without a form of their own were taught.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from router.message.dialect import HERMES
from workers.errors import InvalidRequest

Message = dict[str, Any]

_TOOLS = """# Tools

You may call one or more functions to assist with the user query. You have these functions:
<tools>
{tools}
</tools>

For each function call, return a JSON object with the function's name and arguments within tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-json-object>}}
</tool_call>"""


def tool_calls(calls: object, param: str) -> list[Message]:
    """The calls of an assistant's message, with arguments that are values. Raises InvalidRequest."""
    if not isinstance(calls, list):
        raise InvalidRequest(f"{param} must be a list, but {calls!r:.80} was given", param=param)
    return [_tool_call(call, f"{param}.{index}") for index, call in enumerate(calls)]


def with_tools_as_words(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """Messages of system, user and assistant only, whose contents tell of the tools, calls and results."""
    told = [_as_words(message) for message in messages]
    if not tools:
        return told
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    words = _TOOLS.format(tools=lines)
    if told and told[0]["role"] == "system":
        return [told[0] | {"content": f"{told[0]['content']}\n\n{words}"}, *told[1:]]
    return [{"role": "system", "content": words}, *told]


def call_text(name: str, arguments: Any) -> str:
    """A call as Hermes writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{HERMES.opening}\n{body}\n{HERMES.closing}"


def _as_words(message: Message) -> Message:
    if message["role"] in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    parts = [call_text(function["name"], function["arguments"]) for function in functions]
    content = [message["content"]] if message["content"] else []
    return {"role": message["role"], "content": "\n".join(content + parts)}


def _tool_call(call: object, param: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise InvalidRequest(
            f"{param} must be an object with a function, but {call!r:.80} was given", param=param
        )
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str):
        raise InvalidRequest(
            f"{param}.function.name must be a string, but {name!r:.80} was given",
            param=f"{param}.function.name",
        )
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # what a model wrote and is no JSON it reads again as it was
            arguments = json.loads(arguments or "{}")
    return {**call, "type": "function", "function": {**function, "name": name, "arguments": arguments}}
