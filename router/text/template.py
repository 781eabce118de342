"""Chat templates: a model's own Jinja program that writes a conversation as one prompt.

Templates come with the model and are not trusted: they run in Jinja's immutable sandbox, with the
extensions that templates are written against (transformers' dialect). Whatever goes wrong in one, while
it is compiled or rendered, is a TemplateError with the template's own words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.text.tools import Message, tool_calls, with_tools_as_words
from workers.errors import InvalidRequest, TemplateError

RESERVED = frozenset({"messages", "add_generation_prompt", "tools", "documents", "bos_token", "eos_token"})


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; serving renders its body as it is."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own interface)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter writes `<` as `\\u003c` for HTML, which a model has never seen."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class ChatTemplate:
    """One template, compiled once. `now` is the clock that `strftime_now` reads."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self._special_tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._knows_developer = "developer" in source
        self._knows_tools = "tools" in source
        self._fault: str | None = None
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:  # the model still serves plain completions
            self._fault = f"the model's chat template does not compile: {error}"

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Message] | None = None,
    ) -> str:
        """The prompt. `variables` are the client's `chat_template_kwargs`, `tools` are in OpenAI's form; a
        template that knows no tools gets them as words (`router/text/tools.py`).

        Raises InvalidRequest for messages that are malformed or not text, TemplateError when the template
        refuses them.
        """
        variables = variables or {}
        if taken := sorted(RESERVED & variables.keys()):
            raise InvalidRequest(
                f"chat_template_kwargs may not set {', '.join(taken)}; the server sets that itself",
                param="chat_template_kwargs",
            )
        if self._fault is not None:
            raise TemplateError(self._fault, param="messages")
        plain = [self._plain(index, message) for index, message in enumerate(messages)]
        if not self._knows_tools:
            plain = with_tools_as_words(plain, tools or ())
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **variables,
                    "messages": plain,
                    "tools": list(tools) if tools and self._knows_tools else None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except Exception as error:  # a template can raise anything Python can
            reason = str(error) or type(error).__name__
            raise TemplateError(f"the model's chat template refused: {reason}", param="messages") from error

    def _plain(self, index: int, message: Message) -> Message:
        """The message as templates know it: a role they have a name for, and content that is one string."""
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidRequest(
                f"messages.{index}.role must be a string, but {role!r:.80} was given",
                param=f"messages.{index}.role",
            )
        if message.get("function_call"):
            raise InvalidRequest(
                f"messages.{index}.function_call is not supported by this server; send tool_calls instead",
                param=f"messages.{index}.function_call",
            )
        if role == "developer" and not self._knows_developer:  # OpenAI's newer name for the system's role
            role = "system"
        given = {key: value for key, value in message.items() if value is not None}
        if given.get("tool_calls"):
            given["tool_calls"] = tool_calls(given["tool_calls"], f"messages.{index}.tool_calls")
            given.setdefault("content", "")
        content = plain_content(given.get("content"), f"messages.{index}.content")
        return given | {"role": role, "content": content}


def plain_content(content: object, param: str) -> str:
    """A message's content as one string; text parts are joined by newlines.

    Raises InvalidRequest, naming `param`, for any other kind of part and any other type.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{param} must be a string or a list of text parts, but {content!r:.80} was given", param=param
        )
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("text", "refusal"):
            raise InvalidRequest(
                f"{param}.{index} is a part of type {kind!r:.80}; this model takes text only",
                param=f"{param}.{index}",
            )
        text = part.get(kind)
        if not isinstance(text, str):
            raise InvalidRequest(
                f"{param}.{index}.text must be a string, but {text!r:.80} was given",
                param=f"{param}.{index}.text",
            )
        texts.append(text)
    return "\n".join(texts)
