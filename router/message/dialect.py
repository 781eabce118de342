"""How families of models write a call of a tool, and how a family is told by its chat template.

hermes    <tool_call>{"name": …, "arguments": {…}}</tool_call>      Hermes, Qwen, and any model without
                                                                    a form of its own
mistral   [TOOL_CALLS][{"name": …, "arguments": {…}}, …]            and [TOOL_CALLS]name[ARGS]{…}
llama3    <|python_tag|>{"name": …, "parameters": {…}}; …           the tag may be missing
pythonic  [name(key=value, …), …]                                   Llama 3.2 and 4
json      {"name": …, "arguments": {…}} or a list of such           what forced calls look like
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["json", "pythonic", "named"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Text before `opening` is the answer's; without an opening only a text that is a call from its first
    character on is one. `closing` ends a call, `name_end` a name that stands before its arguments."""

    name: str
    opening: str = ""
    closing: str = ""
    is_opening_optional: bool = False
    is_pythonic: bool = False
    name_end: str = ""


HERMES = Dialect("hermes", "<tool_call>", "</tool_call>")
MISTRAL = Dialect("mistral", "[TOOL_CALLS]", name_end="[ARGS]")
LLAMA3 = Dialect("llama3", "<|python_tag|>", is_opening_optional=True)
PYTHONIC = Dialect("pythonic", is_pythonic=True)
JSON = Dialect("json")

DIALECTS = {dialect.name: dialect for dialect in (HERMES, MISTRAL, LLAMA3, PYTHONIC, JSON)}


def dialect_of(chat_template: str | None) -> Dialect:
    """The dialect that the template teaches its model; Hermes' if it teaches none."""
    template = chat_template or ""
    if MISTRAL.opening in template:
        return MISTRAL
    if HERMES.opening in template:
        return HERMES
    if "func_name1(params_name1" in template or "[func_name" in template:
        return PYTHONIC
    if LLAMA3.opening in template or ("ipython" in template and '"parameters"' in template):
        return LLAMA3
    return HERMES
