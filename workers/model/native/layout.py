"""Where everything of one step is, as the arrays of integers that `tape.c` reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from workers.model.batch import Chunk
from workers.model.cache import KvCache
from workers.model.native.tape import Step

ChunkRow = tuple[
    int, int, int, int, int
]  # first row, queries, first position, its blocks' place, first output


class Layout:
    """Rows are tokens, in the order of the chunks; the arrays live as long as the layout."""

    def __init__(self, chunks: Sequence[Chunk], block_tokens: int) -> None:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        blocks: list[int] = []
        wanted: list[int] = []
        all_rows: list[ChunkRow] = []
        wanted_rows: list[ChunkRow] = []
        for chunk in chunks:
            first, count, table = len(tokens), len(chunk.token_ids), chunk.block_table
            all_rows.append((first, count, chunk.start, len(blocks), first))
            if chunk.rows == "all":
                wanted_rows.append((first, count, chunk.start, len(blocks), len(wanted)))
                wanted += range(first, first + count)
            elif chunk.rows == "last":
                wanted_rows.append((first + count - 1, 1, chunk.end - 1, len(blocks), len(wanted)))
                wanted.append(first + count - 1)
            tokens += chunk.token_ids
            positions += range(chunk.start, chunk.end)
            slots += [
                table[position // block_tokens] * block_tokens + position % block_tokens
                for position in range(chunk.start, chunk.end)
            ]
            blocks += table[: -(-chunk.end // block_tokens)]
        self.num_rows, self.num_wanted = len(tokens), len(wanted)
        self._num_chunks, self._num_wanted_chunks = len(all_rows), len(wanted_rows)
        self._arrays = {
            "tokens": _int32(tokens),
            "positions": _int32(positions),
            "slots": _int32(slots),
            "wanted": _int32(wanted),
            "blocks": _int32(blocks),
            "chunks": _int32([number for row in all_rows for number in row]),
            "wanted_chunks": _int32([number for row in wanted_rows for number in row]),
        }

    def step(self, cache: KvCache) -> Step:
        return Step(
            num_rows=self.num_rows,
            num_wanted=self.num_wanted,
            num_chunks=self._num_chunks,
            num_wanted_chunks=self._num_wanted_chunks,
            layers=ctypes.addressof(cache.addresses),
            **{name: ctypes.addressof(array) for name, array in self._arrays.items()},
        )


def _int32(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * len(numbers))(*numbers)
