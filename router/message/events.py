"""What an assistant's text turns out to be, piece by piece: words, thoughts, or calls of tools.

`index` counts the calls of one answer. A call's arguments are the concatenation of its fragments: JSON text,
as the model wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    index: int
    fragment: str


Event = Content | Reasoning | CallStart | CallArguments


@dataclass(slots=True)
class Call:
    name: str
    arguments: str = ""


@dataclass(slots=True)
class AssistantMessage:
    """All events of an answer, put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case CallStart(_, name):
                self.calls.append(Call(name))
            case CallArguments(index, fragment):
                self.calls[index].arguments += fragment
