"""An assistant's text becomes words, thoughts and calls, the same however it is cut into pieces."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from router.message.dialect import HERMES, JSON, LLAMA3, MISTRAL, PYTHONIC, Dialect, dialect_of
from router.message.events import AssistantMessage, Call
from router.message.parser import MessageForm, MessageParser

ROME = Call("weather", '{"city": "Rome"}')
OSLO = Call("weather", '{"city": "Oslo \\"}] </tool_call>", "days": [1, {"a": 2}]}')
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
OTHER = '{"name": "weather", "arguments": ' + OSLO.arguments + "}"

CASES: dict[str, tuple[Dialect | None, str, AssistantMessage]] = {
    "words": (HERMES, "Just <b>words</b> < here. ", AssistantMessage("Just <b>words</b> < here. ")),
    "no tools": (None, CALL, AssistantMessage(CALL)),
    "hermes": (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", AssistantMessage("", "", [ROME])),
    "hermes after words": (
        HERMES,
        f"Let me see.\n<tool_call>{CALL}</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>\n",
        AssistantMessage("Let me see.", "", [ROME, OSLO]),
    ),
    "hermes list": (
        HERMES,
        f"<tool_call>[{CALL}, {OTHER}]</tool_call>",
        AssistantMessage("", "", [ROME, OSLO]),
    ),
    "hermes unclosed": (HERMES, f"<tool_call>{CALL}", AssistantMessage("", "", [ROME])),
    "hermes broken": (HERMES, "<tool_call>nothing</tool_call>", AssistantMessage("nothing</tool_call>")),
    "mistral": (MISTRAL, f"[TOOL_CALLS][{CALL}, {OTHER}]", AssistantMessage("", "", [ROME, OSLO])),
    "mistral named": (
        MISTRAL,
        f"[TOOL_CALLS]weather[ARGS]{ROME.arguments}[TOOL_CALLS]weather[ARGS]{OSLO.arguments}",
        AssistantMessage("", "", [ROME, OSLO]),
    ),
    "llama3": (LLAMA3, CALL.replace("arguments", "parameters"), AssistantMessage("", "", [ROME])),
    "llama3 tagged": (
        LLAMA3,
        '<|python_tag|>{"type": "function", "name": "weather", "parameters": {"city": "Rome"}}; ' + OTHER,
        AssistantMessage("", "", [ROME, OSLO]),
    ),
    "llama3 words": (LLAMA3, "It is {warm}.", AssistantMessage("It is {warm}.")),
    "pythonic": (
        PYTHONIC,
        '[weather(city="Rome"), clock()]',
        AssistantMessage("", "", [ROME, Call("clock", "{}")]),
    ),
    "pythonic words": (PYTHONIC, "[1] is a list", AssistantMessage("[1] is a list")),
    "json": (JSON, f"[{CALL}, {OTHER}]", AssistantMessage("", "", [ROME, OSLO])),
    "json arguments first": (
        JSON,
        '{"arguments": {"city": "Rome"}, "name": "weather"}',
        AssistantMessage("", "", [ROME]),
    ),
    "json arguments as a string": (
        JSON,
        json.dumps({"name": "weather", "arguments": ROME.arguments}),
        AssistantMessage("", "", [ROME]),
    ),
    "json without arguments": (JSON, '{"name": "clock"}', AssistantMessage("", "", [Call("clock", "{}")])),
    "json that is no call": (JSON, '{"city": "Rome"} is it', AssistantMessage('{"city": "Rome"} is it')),
    "json cut short": (
        JSON,
        '{"name": "weather", "arguments": {"city": "Ro',
        AssistantMessage("", "", [Call("weather", '{"city": "Ro')]),
    ),
}


def parse(form: MessageForm, pieces: list[str]) -> AssistantMessage:
    parser, message = MessageParser(form), AssistantMessage()
    for piece in pieces:
        for event in parser.feed(piece):
            message.add(event)
    for event in parser.flush():
        message.add(event)
    return message


def cuts(text: str) -> list[list[str]]:
    rng = random.Random(1)
    ways = [[text], list(text)]
    for _ in range(30):
        places = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(rng.randint(1, 9)))})
        ways.append([text[a:b] for a, b in pairwise(places)])
    return ways


@pytest.mark.parametrize("name", CASES)
def test_calls_are_read_however_the_text_is_cut(name: str) -> None:
    dialect, text, expected = CASES[name]
    for pieces in cuts(text):
        assert parse(MessageForm(dialect), pieces) == expected, pieces


@pytest.mark.parametrize("name", CASES)
def test_thoughts_come_before_everything_else(name: str) -> None:
    dialect, text, expected = CASES[name]
    for form, opening in (
        (MessageForm(dialect, may_think=True), "\n<think>"),
        (MessageForm(dialect, may_think=True, is_thinking=True), ""),
    ):
        for pieces in cuts(f"{opening}Hm, 1 < 2, </thin is no end.</think>\n\n{text}"):
            message = parse(form, pieces)
            assert message.reasoning == "Hm, 1 < 2, </thin is no end."
            assert (message.content, message.calls) == (expected.content, expected.calls), pieces


def test_a_model_that_may_think_need_not() -> None:
    for pieces in cuts("<thin is a word"):
        assert parse(MessageForm(HERMES, may_think=True), pieces) == AssistantMessage("<thin is a word")


def test_calls_past_the_most_that_were_asked_for_are_dropped() -> None:
    text = f"[{CALL}, {OTHER}]"
    for pieces in cuts(text):
        assert parse(MessageForm(JSON, max_calls=1), pieces).calls == [ROME]


def test_arguments_stream_while_they_are_written() -> None:
    parser = MessageParser(MessageForm(HERMES))
    parser.feed('<tool_call>{"name": "weather", "argum')
    before = AssistantMessage()
    for event in parser.feed('ents": {"city": "Ro'):
        before.calls = before.calls or [Call("weather")]
        before.add(event)
    assert before.calls[0].arguments == '{"city": "Ro'


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        ("{% for tool in tools %}<tool_call>{% endfor %}", HERMES),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", MISTRAL),
        ('<|python_tag|> "parameters"', LLAMA3),
        ("[func_name1(params_name1=params_value1)]", PYTHONIC),
        ("plain", HERMES),
        (None, HERMES),
    ],
)
def test_a_template_tells_its_family(template: str | None, dialect: Dialect) -> None:
    assert dialect_of(template) is dialect
