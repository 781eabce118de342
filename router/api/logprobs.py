"""Log-probabilities of tokens, kept in step with the text that is shown.

A token's entry is given out when all of its text is, and never if none of its text is: where a stop
string cuts the text, the entries of the tokens behind the cut are dropped.
"""

from __future__ import annotations

from collections import deque

import msgspec

from workers.wire import Logprob

LEAST = -9999.0  # what OpenAI writes for a token that cannot come; JSON has no minus infinity


class TokenLogprob(msgspec.Struct, frozen=True):
    """`offset` is where the token's text starts in the choice's text, in characters."""

    token_id: int
    logprob: float | None
    top: list[tuple[int, float]]
    offset: int


def finite(logprob: float) -> float:
    """The log-probability as JSON can say it."""
    return logprob if logprob > LEAST else LEAST


class LogprobLedger:
    """The entries of one sequence, whose text starts at `offset` of the choice's text."""

    __slots__ = ("_held", "_num_decoded")

    def __init__(self, offset: int) -> None:
        self._num_decoded = offset
        self._held: deque[tuple[int, TokenLogprob]] = deque()  # with the offset where each token's text ends

    def add(self, logprob: Logprob, num_characters: int, *, is_amid_character: bool) -> None:
        """Note the next token, which made this many characters final and may have begun one more."""
        start = self._num_decoded
        self._num_decoded += num_characters
        entry = TokenLogprob(logprob.token_id, logprob.logprob, logprob.top, start)
        self._held.append((self._num_decoded + is_amid_character, entry))

    def release(self, num_shown: int) -> list[TokenLogprob]:
        """The entries whose text is now shown, given that the first `num_shown` characters are."""
        released = []
        while self._held and self._held[0][0] <= num_shown:
            released.append(self._held.popleft()[1])
        return released

    def cut(self, num_shown: int) -> list[TokenLogprob]:
        """The entries left of the cut; those behind it are dropped."""
        kept = [entry for _, entry in self._held if entry.offset < num_shown]
        self._held.clear()
        return kept
