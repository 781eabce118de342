"""Chat templates: transformers' dialect, in a sandbox, with every failure told in the template's words."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from router.text.template import ChatTemplate
from workers.errors import InvalidRequest, TemplateError

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    template = ChatTemplate(source, bos_token="<s>", now=lambda: datetime(2026, 7, 14))
    return template.render(messages or HELLO, variables=variables)


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{% for m in messages %}\n  {% if m %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}", "hello\n"),
        ("{{ {'a': '<b>', 'c': 'é'} | tojson }}", '{"a": "<b>", "c": "é"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ strftime_now('%d %b %Y') }}", "14 Jul 2026"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}z", "ahelloz"),
        ("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|{{ add_generation_prompt }}", "<s>||True|True"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = 5 %}{% endfor %}{{ ns.n }}",
            "5",
        ),
    ],
)
def test_what_templates_are_written_against_is_there(source: str, prompt: str) -> None:
    assert render(source) == prompt


def test_variables_of_the_client_reach_the_template_but_not_the_servers_own() -> None:
    assert render("{{ enable_thinking }}", enable_thinking=False) == "False"
    with pytest.raises(InvalidRequest, match="bos_token, tools") as caught:
        render("x", bos_token="", tools=[], thinking=True)
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ missing.field }}", "'missing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{% for m in messages %}", "does not compile"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{{ range(999999999) | list }}", "Range too big"),
    ],
)
def test_a_template_that_fails_says_why(source: str, words: str) -> None:
    with pytest.raises(TemplateError, match=words) as caught:
        render(source)
    assert caught.value.status == 400


def test_text_parts_are_joined_to_one_string() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "hi"}, "messages.0.role"),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "user", "content": 5}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages.0.content.0"),
        ({"role": "user", "content": ["hi"]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.0.content.0.text"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "messages.0.tool_calls.0"),
    ],
)
def test_a_message_that_is_not_text_is_refused_by_name(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("{{ messages[0].content }}", [message])
    assert caught.value.param == param


def test_the_developer_role_is_the_systems_for_templates_that_do_not_know_it() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{% if messages[0].role == 'developer' %}known{% endif %}", messages) == "known"
