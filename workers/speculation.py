"""Drafts of a sequence's next tokens, found in what it has said before.

Whoever summarises, edits or quotes repeats: where the last tokens have stood before, what followed them then
is a good guess for what follows now. A decode step computes a draft beside the newest token, for little more
than the reading of the weights that it does anyway, and keeps what sampling draws as well.

Pure: the scheduler asks for drafts, the engine reports how they fared.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens

NGRAMS = (3, 2)  # tokens that must have stood before, the longer ones first
STEP_ROWS = 16  # tokens that a decode step computes for hardly more than the time of one
LONGEST_PAUSE = 32  # tokens


def longest_draft(num_decodes: int) -> int:
    """Tokens that each of so many sequences may draft in one step; in a large batch none."""
    return max(STEP_ROWS // num_decodes - 1, 0) if num_decodes else 0


class Drafter:
    """Of one sequence: drafts grow while they are right, shrink to what was right, pause if nothing is."""

    __slots__ = ("_length", "_longest", "_misses", "_num_indexed", "_pause", "_places")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._length = longest
        self._misses = 0
        self._pause = 0
        self._places: dict[tuple[int, ...], int] = {}  # n-gram: where what followed it begins
        self._num_indexed = 0

    def propose(self, token_ids: Tokens[int], limit: int) -> list[int]:
        """What may follow `token_ids`, at most `limit` tokens; empty if nothing is known."""
        limit = min(limit, self._length)
        if self._pause > 0:
            self._pause -= 1
            return []
        if limit <= 0:
            return []
        self._index(token_ids)
        for size in NGRAMS:
            place = self._places.get(tuple(token_ids[-size:]))
            if place is not None and len(token_ids) > size:
                return list(token_ids[place : place + limit])
        return []

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Of the last draft so many tokens were what sampling drew."""
        if num_accepted == num_drafted:
            self._length = min(2 * self._length, self._longest)
        else:
            self._length = num_accepted + 1
        self._misses = 0 if num_accepted else self._misses + 1
        if self._misses > 1:
            self._pause = min(1 << self._misses, LONGEST_PAUSE)

    def _index(self, token_ids: Tokens[int]) -> None:
        """Note every n-gram that something follows; of equal ones the latest counts."""
        for end in range(max(self._num_indexed, min(NGRAMS)), len(token_ids)):
            for size in NGRAMS:
                if end >= size:
                    self._places[tuple(token_ids[end - size : end])] = end
        self._num_indexed = len(token_ids)
