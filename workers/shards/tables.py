"""Block tables as the leader tells them: a table is numbered once, then only what was appended is sent.

A block table is a list that is appended to until its sequence gives it up as a whole, so the list itself is
what identifies it.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_TABLES = 1024  # remembered at least; those that were used longest ago are told again when they come back


@dataclass(slots=True)
class _Told:
    table: list[int]  # held, so that no other list can have its identity
    number: int
    num_told: int


class TableSender:
    """What the followers know."""

    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}  # the one used last is last

    def tell(self, table: list[int], num_needed: int, num_tables: int) -> tuple[int, int, list[int]]:
        """Number of the table, blocks of it that are known, and those that come after them, up to the
        `num_needed` first. `num_tables` are told in one message."""
        key = id(table)
        told = self._told.pop(key, None)
        if told is None:
            told = _Told(table, self._free_number(max(MIN_TABLES, 2 * num_tables)), 0)
        self._told[key] = told
        num_known = told.num_told
        told.num_told = max(num_known, num_needed)
        return told.number, num_known, table[num_known:num_needed]

    def _free_number(self, num_tables: int) -> int:
        if len(self._told) < num_tables:
            return len(self._told)
        oldest = next(iter(self._told))
        return self._told.pop(oldest).number


class TableReceiver:
    """A follower's tables by number."""

    def __init__(self) -> None:
        self._tables: dict[int, list[int]] = {}

    def hear(self, number: int, num_known: int, blocks: list[int]) -> list[int]:
        """The table, as far as it was told."""
        if num_known == 0:
            self._tables[number] = blocks
            return blocks
        table = self._tables[number]
        table += blocks
        return table
