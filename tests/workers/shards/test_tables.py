"""A follower knows every block table that a step needs, whatever was told before and forgotten since."""

from __future__ import annotations

import random

import workers.shards.tables as tables
from workers.shards.tables import TableReceiver, TableSender


def test_tables_arrive_as_they_are_however_they_grow_end_and_are_forgotten() -> None:
    rng = random.Random(3)
    sender, receiver = TableSender(), TableReceiver()
    live: list[list[int]] = []
    num_told = 0
    for _ in range(4000):
        if not live or rng.random() < 0.4:
            live.append([rng.randrange(1000) for _ in range(rng.randrange(1, 5))])
        for table in rng.sample(live, min(len(live), 3)):
            table += [rng.randrange(1000) for _ in range(rng.randrange(3))]
            number, num_known, blocks = sender.tell(table, len(table), 3)
            heard = receiver.hear(number, num_known, blocks)
            assert heard == table
            num_told += len(blocks)
        if len(live) > 1500:
            del live[rng.randrange(len(live))]
    assert len(live) > tables.MIN_TABLES  # so that some were forgotten and told again


def test_a_table_that_has_not_grown_costs_nothing() -> None:
    sender = TableSender()
    table = [4, 5, 6]
    first = sender.tell(table, 2, 1)
    again = sender.tell(table, 2, 1)
    table.append(7)
    more = sender.tell(table, 4, 1)
    assert (first[1:], again[1:], more[1:]) == ((0, [4, 5]), (2, []), (2, [6, 7]))
    assert first[0] == again[0] == more[0]
