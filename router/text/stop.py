"""Stop strings, found in text that comes in pieces.

The text ends where the first stop string is complete; if several are complete with the same character,
the longest counts. This does not depend on how the text was cut into pieces. Held back is exactly the
longest end of the text that may yet become a stop string, so no part of one is ever shown and nothing
else waits. Found with an Aho-Corasick automaton: constant work per character, however many strings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopStrings:
    """The automaton of a set of stop strings, none of them empty; any number of matchers may share it.

    A state is the longest end of the text that is a beginning of some stop string; `depth` is its length.
    `match_length` is the length of the longest stop string that ends in this state, or 0.
    """

    __slots__ = ("_edges", "_fallback", "depth", "first_characters", "match_length")

    def __init__(self, stops: Iterable[str]) -> None:
        self._edges: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.depth = [0]
        self.match_length = [0]
        for stop in stops:
            if not stop:
                raise ValueError("a stop string must not be empty")
            self._insert(stop)
        self.first_characters = frozenset(self._edges[0])
        self._link()

    def advance(self, state: int, char: str) -> int:
        """The state after `char`."""
        while state and char not in self._edges[state]:
            state = self._fallback[state]
        return self._edges[state].get(char, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self._edges[state].get(char)
            if following is None:
                following = self._edges[state][char] = len(self.depth)
                self._edges.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match_length.append(0)
            state = following
        self.match_length[state] = len(stop)

    def _link(self) -> None:
        """Breadth first, so that a state's fallback is linked before the state itself."""
        queue = deque(self._edges[0].values())
        while queue:
            state = queue.popleft()
            for char, following in self._edges[state].items():
                fallback = self._fallback[following] = self.advance(self._fallback[state], char)
                # A state's own string is longer than any that ends in its fallback.
                self.match_length[following] = self.match_length[following] or self.match_length[fallback]
                queue.append(following)


class StopMatcher:
    """Watches the text of one sequence. With `include`, the stop string that was found is shown too."""

    __slots__ = ("_held", "_include", "_state", "_stops", "is_matched")

    def __init__(self, stops: StopStrings, *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._state = 0
        self._held = ""
        self.is_matched = False

    def feed(self, text: str) -> str:
        """What can be shown now. Once a stop string is found, `is_matched`, and nothing more is shown."""
        stops = self._stops
        if self.is_matched:
            return ""
        if not self._state and stops.first_characters.isdisjoint(text):
            return text
        state, advance, match_length = self._state, stops.advance, stops.match_length
        for position, char in enumerate(text, 1):
            state = advance(state, char)
            if match_length[state]:
                self.is_matched = True
                whole = self._held + text[:position]
                self._held = ""
                return whole if self._include else whole[: len(whole) - match_length[state]]
        self._state = state
        whole = self._held + text
        num_shown = len(whole) - stops.depth[state]
        self._held = whole[num_shown:]
        return whole[:num_shown]

    def flush(self) -> str:
        """The end of the text: what was held back is no stop string after all."""
        held, self._held, self._state = self._held, "", 0
        return held
