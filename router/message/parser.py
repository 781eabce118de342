"""Splits an assistant's text, as it comes, into thoughts, words and calls of tools.

Events do not depend on how the text was cut into pieces, but for how fragments are grouped. Held back is
only what may yet be part of a marker, or of a call whose name is not known. A text that looks like a call
and is none comes out as words.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.message.calls import JsonCalls
from router.message.dialect import Dialect
from router.message.events import CallArguments, CallStart, Content, Event, Reasoning
from router.message.pythonic import pythonic_calls

THINK, END_THINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class MessageForm:
    """What a text may hold: calls in a dialect, if any, and thoughts, in which it may already be."""

    dialect: Dialect | None = None
    may_think: bool = False
    is_thinking: bool = False
    max_calls: int | None = None


class MessageParser:
    """One answer's text."""

    def __init__(self, form: MessageForm) -> None:
        self._form = form
        self._held = ""
        self._may_think = form.may_think and not form.is_thinking
        self._is_thinking = form.is_thinking
        self._is_fresh = True  # nothing but white space has come
        self._calls: JsonCalls | None = None
        self._num_calls = 0
        self._spaces = ""  # at the end of the words so far: not part of them if a call follows
        self._after_thought = False

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def feed(self, text: str) -> list[Event]:
        """What this text makes known."""
        self._held += text
        events: list[Event] = []
        while self._held and self._step(events):
            pass
        return _grouped(self._admitted(events))

    def flush(self) -> list[Event]:
        """The text ends here."""
        events: list[Event] = []
        dialect = self._form.dialect
        if dialect is not None and dialect.is_pythonic and self._is_fresh and self._held:
            calls = pythonic_calls(self._held)
            if calls is not None:
                for call in calls:
                    events += [
                        CallStart(self._num_calls, call.name),
                        CallArguments(self._num_calls, call.arguments),
                    ]
                    self._num_calls += 1
                self._held = ""
        if self._calls is not None:
            events += self._calls.end()
            if self._calls.is_between:
                events += self._words(self._held)
            self._calls, self._held = None, ""
        if self._held:
            if self._after_thought and self._is_fresh:
                self._held = self._held.lstrip()
            events += [Reasoning(self._held)] if self._is_thinking else self._words(self._held)
            self._held = ""
        if self._spaces and not self.has_calls:
            events.append(Content(self._spaces))
        return _grouped(self._admitted(events))

    def _step(self, events: list[Event]) -> bool:
        """Make sense of the head of what is held; False if more text is needed."""
        if self._is_thinking:
            return self._think(events)
        if self._calls is not None:
            return self._call(events)
        if self._is_fresh:
            return self._begin(events)
        dialect = self._form.dialect
        if dialect is None or not dialect.opening:
            return self._say(events, len(self._held))
        return self._look_for(dialect.opening, events)

    def _think(self, events: list[Event]) -> bool:
        before, found, after = self._held.partition(END_THINK)
        if found:
            if before:
                events.append(Reasoning(before))
            self._held, self._is_thinking, self._after_thought = after, False, True
            return True
        num_told = len(self._held) - _overlap(self._held, END_THINK)
        if num_told:
            events.append(Reasoning(self._held[:num_told]))
            self._held = self._held[num_told:]
        return False

    def _begin(self, events: list[Event]) -> bool:
        """The first characters tell what kind of text this is."""
        text = self._held.lstrip()
        if not text:
            return False
        if self._may_think:
            if text.startswith(THINK):
                self._held, self._is_thinking, self._may_think = text[len(THINK) :], True, False
                return True
            if THINK.startswith(text):
                return False
        dialect = self._form.dialect
        if dialect is not None and not (dialect.opening and not dialect.is_opening_optional):
            if dialect.opening:
                if text.startswith(dialect.opening):
                    self._open(text[len(dialect.opening) :])
                    return True
                if dialect.opening.startswith(text):
                    return False
            if dialect.is_pythonic:
                if text[0] == "[":
                    return False  # known as a whole only
            else:
                inner = text.removeprefix("[").lstrip()
                if not inner:
                    return False
                if inner[0] == "{":
                    self._open(text)
                    return True
        if self._after_thought:
            self._held = text
        self._is_fresh = False
        return True

    def _look_for(self, opening: str, events: list[Event]) -> bool:
        before, found, after = self._held.partition(opening)
        if found:
            events += self._words(before)
            self._spaces = ""
            self._open(after)
            return True
        return self._say(events, len(self._held) - _overlap(self._held, opening))

    def _say(self, events: list[Event], num_characters: int) -> bool:
        if num_characters:
            events += self._words(self._held[:num_characters])
            self._held = self._held[num_characters:]
        return False

    def _words(self, text: str) -> list[Event]:
        if self._form.dialect is None:
            return [Content(text)] if text else []
        text = self._spaces + text
        kept = text.rstrip()
        self._spaces = text[len(kept) :]
        if not kept:
            return []
        if self.has_calls and not kept.strip():
            return []
        return [Content(kept)]

    def _open(self, rest: str) -> None:
        self._held, self._is_fresh = rest, False
        self._calls = JsonCalls(self._num_calls)

    def _call(self, events: list[Event]) -> bool:
        """Characters of calls, up to whatever ends them."""
        calls, held = self._calls, self._held
        assert calls is not None
        for position, char in enumerate(held):
            if calls.is_between:
                self._held = held[position:]
                moved = self._between_calls(char, events)
                if moved is not None:
                    return moved
            told = calls.feed(char)
            if told is None:  # words after all
                self._calls = None
                events += self._words(calls.rest() + char)
                self._held = held[position + 1 :]
                return True
            events += told
            self._count(told)
        self._held = ""
        return False

    def _between_calls(self, char: str, events: list[Event]) -> bool | None:
        """What stands between two calls, if `char` begins it: True if it was dealt with, False if more text
        is needed to tell, None if it is something else."""
        calls, dialect, held = self._calls, self._form.dialect, self._held
        assert calls is not None
        assert dialect is not None
        for marker in filter(None, (dialect.closing, dialect.opening)):
            if held.startswith(marker):
                self._held = held[len(marker) :]
                if marker == dialect.closing:
                    self._calls = None
                return True
            if marker.startswith(held):
                return False
        if not dialect.name_end or not (char.isalnum() or char in "_-."):
            return None
        ends = [place for place in (held.find(dialect.name_end), held.find("{")) if place >= 0]
        if not ends:
            return False
        told = calls.begin(held[: min(ends)].strip())
        self._count(told)
        events += told
        self._held = held[min(ends) :].removeprefix(dialect.name_end)
        return True

    def _count(self, told: list[Event]) -> None:
        self._num_calls += sum(isinstance(event, CallStart) for event in told)

    def _admitted(self, events: list[Event]) -> list[Event]:
        """Without the calls past the most that were asked for."""
        limit = self._form.max_calls
        if limit is None:
            return events
        return [
            event
            for event in events
            if not isinstance(event, CallStart | CallArguments) or event.index < limit
        ]


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a beginning of `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


def _grouped(events: list[Event]) -> list[Event]:
    """Neighbouring fragments of the same thing as one."""
    grouped: list[Event] = []
    for event in events:
        last = grouped[-1] if grouped else None
        match last, event:
            case Content(old), Content(new):
                grouped[-1] = Content(old + new)
            case Reasoning(old), Reasoning(new):
                grouped[-1] = Reasoning(old + new)
            case CallArguments(index, old), CallArguments(same, new) if index == same:
                grouped[-1] = CallArguments(index, old + new)
            case _:
                grouped.append(event)
    return grouped
