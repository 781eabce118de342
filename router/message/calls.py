"""Calls of tools in the JSON that models write them in, read character by character.

A call is an object with a name and arguments; calls come one after another, in a list or not. Arguments go
out as they come, once the name is known. Whatever is no call, up to the point where that is known, is
handed back as text.
"""

from __future__ import annotations

import json
from enum import Enum, auto

from router.message.events import CallArguments, CallStart, Content, Event

ARGUMENTS_KEYS = frozenset({"arguments", "parameters"})
_NAME_KEYS = frozenset({"name"})
_SEPARATORS = frozenset(" \t\r\n,;[]")


class _Place(Enum):
    BETWEEN = auto()  # objects
    KEY = auto()  # or the object's end
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    COMMA = auto()  # or the object's end


class JsonCalls:
    """Reads what follows a call's opening. `num_before` calls of the answer came earlier."""

    def __init__(self, num_before: int = 0) -> None:
        self.num_calls = num_before
        self._place = _Place.BETWEEN
        self._raw: list[str] = []  # of the object, as long as it may turn out to be text
        self._name: str | None = None
        self._arguments: str | None = None  # known before the name, or written as a string
        self._reset()

    @property
    def is_between(self) -> bool:
        """Whether no call is open, so that what comes may be something else."""
        return self._place is _Place.BETWEEN

    def begin(self, name: str) -> list[Event]:
        """A call whose name stands before its arguments, which come now."""
        self._name, self._has_started, self._is_bare = name, True, True
        self._key, self._place = "arguments", _Place.VALUE
        return [CallStart(self.num_calls, name)]

    def feed(self, char: str) -> list[Event] | None:
        """The events of one more character; None if it cannot be part of a call. Then `rest` has the text
        that was held back, that character not included."""
        if self._place is not _Place.BETWEEN:
            self._raw.append(char)
        if self._place is _Place.IN_VALUE:
            return self._in_value(char)
        if self._place is _Place.IN_KEY:
            return self._in_key(char)
        if self._place is _Place.BETWEEN:
            return self._between(char)
        if char.isspace():
            return []
        return self._structure(char)

    def end(self) -> list[Event]:
        """The text ends here: what was held back of an unfinished call, unless it was told already."""
        return [Content("".join(self._raw))] if not self._has_started and self._raw else []

    def rest(self) -> str:
        """What was held back and is text after all."""
        text = "" if self._has_started else "".join(self._raw[:-1])
        self._raw.clear()
        return text

    def _reset(self) -> None:
        self._raw.clear()
        self._key = ""
        self._value: list[str] = []
        self._depth = 0
        self._is_string = False
        self._in_string = False
        self._is_escaped = False
        self._name = None
        self._arguments = None
        self._has_started = False
        self._has_arguments = False
        self._is_bare = False  # no object around name and arguments

    def _between(self, char: str) -> list[Event] | None:
        if char == "{":
            self._raw.append(char)
            self._place = _Place.KEY
            return []
        return [] if char in _SEPARATORS else None

    def _structure(self, char: str) -> list[Event] | None:
        match self._place, char:
            case _Place.KEY, '"':
                self._key, self._is_escaped = "", False
                self._place = _Place.IN_KEY
            case _Place.COLON, ":":
                self._place = _Place.VALUE
            case _Place.VALUE, _:
                return self._open_value(char)
            case _Place.COMMA, ",":
                self._place = _Place.KEY
            case ((_Place.COMMA | _Place.KEY), "}"):
                return self._close()
            case _:
                return None
        return []

    def _in_key(self, char: str) -> list[Event]:
        if char == '"' and not self._is_escaped:
            self._place = _Place.COLON
        else:
            self._is_escaped = char == "\\" and not self._is_escaped
            self._key += char
        return []

    def _open_value(self, char: str) -> list[Event] | None:
        if char in ",:}]":
            return None
        self._place, self._value = _Place.IN_VALUE, []
        self._is_string = char == '"'
        self._depth, self._in_string, self._is_escaped = 0, False, False
        return self._in_value(char)

    def _in_value(self, char: str) -> list[Event] | None:
        """One character of a value. A scalar ends before the character that follows it."""
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._in_string = False
                return self._take(char, is_end=self._depth == 0)
            return self._take(char)
        if char == '"':
            self._in_string = True
            return self._take(char)
        if char in "{[":
            self._depth += 1
            return self._take(char)
        if char in "}]" and self._depth:
            self._depth -= 1
            return self._take(char, is_end=self._depth == 0)
        if self._depth == 0 and (char in ",}" or char.isspace()):
            events = self._finish_value()
            self._place = _Place.COMMA
            if events is None or char.isspace():
                return events
            after = self._structure(char)
            return None if after is None else events + after
        return self._take(char)

    def _take(self, char: str, *, is_end: bool = False) -> list[Event] | None:
        self._value.append(char)
        events: list[Event] = []
        if self._key in ARGUMENTS_KEYS and self._name is not None and not self._is_string:
            events = [CallArguments(self.num_calls, char)]
            self._has_arguments = True
        if not is_end:
            return events
        after = self._finish_value()
        self._place = _Place.COMMA
        if after is None:
            return None
        return events + after + ((self._close() or []) if self._is_bare else [])

    def _finish_value(self) -> list[Event] | None:
        text = "".join(self._value)
        if self._key in _NAME_KEYS:
            try:
                name = json.loads(text, strict=False)
            except ValueError:
                return None
            if not isinstance(name, str) or not name or self._has_started:
                return None
            self._name, self._has_started = name, True
            events: list[Event] = [CallStart(self.num_calls, name)]
            return events + self._late_arguments()
        if self._key in ARGUMENTS_KEYS and not self._has_arguments:
            if self._is_string:  # arguments as OpenAI writes them: JSON within a string
                try:
                    text = json.loads(text, strict=False)
                except ValueError:
                    return None
            self._arguments = text
            return self._late_arguments() if self._name is not None else []
        return []

    def _late_arguments(self) -> list[Event]:
        if self._arguments is None:
            return []
        self._has_arguments = True
        return [CallArguments(self.num_calls, self._arguments)]

    def _close(self) -> list[Event] | None:
        """The object is complete; one without a name is no call."""
        if self._name is None:
            return None
        events: list[Event] = [] if self._has_arguments else [CallArguments(self.num_calls, "{}")]
        self.num_calls += 1
        self._reset()
        self._place = _Place.BETWEEN
        return events
