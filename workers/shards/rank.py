"""One rank's share of every step: its decoder, its lanes and its neighbours in the pipeline.

Leader and followers do exactly the same here, in the same order; that is why nothing has to be said about it.
Shapes: R wanted rows, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from workers.model.batch import Chunk
from workers.model.cache import KvCache
from workers.model.decoder import Decoder
from workers.model.parts import Cut
from workers.shards.lanes import ShardLanes
from workers.shards.ring import Ring


class Rank:
    """`lanes` are None if the stage has but one, `ring` if there is but one stage."""

    def __init__(
        self, cut: Cut, number: int, decoder: Decoder, lanes: ShardLanes | None, ring: Ring | None
    ) -> None:
        self.cut = cut
        self.part = cut.parts[number]
        self.decoder = decoder
        self._lanes = lanes
        self._ring = ring
        self._num_steps = 0
        self._widths = [part.vocabulary.size for part in cut.parts[: cut.tensor]]

    def forward(self, chunks: Sequence[Chunk], cache: KvCache) -> torch.Tensor | None:
        """Compute this rank's share of a step; on the first stage the wanted rows' hidden states [R, E]."""
        part, decoder, ring = self.part, self.decoder, self._ring
        self._num_steps += 1
        if ring is None:
            return decoder.forward(chunks, cache)
        width = part.whole.hidden_size
        wanted = sum(num_wanted(chunk) for chunk in chunks)
        if part.is_first:
            ring.send(decoder.forward(chunks, cache))
            if wanted == 0:
                return torch.empty(0, width, dtype=decoder.dtype, device=decoder.device)
            return ring.receive((wanted, width), decoder.dtype, decoder.device)
        num_rows = max(sum(len(chunk.token_ids) for chunk in chunks), decoder.min_rows)
        entering = ring.receive((num_rows, width), decoder.dtype, decoder.device)
        leaving = decoder.forward(chunks, cache, entering)
        if not part.is_last or wanted:
            ring.send(leaving)
        return None

    def logits(self, hidden_RE: torch.Tensor) -> torch.Tensor | None:
        """On the first stage: the logits [R, V] on its first lane, None on the others."""
        logits_RW = self.decoder.logits(hidden_RE)
        return logits_RW if self._lanes is None else self._lanes.gather(logits_RW, self._widths)

    @property
    def num_events(self) -> int:
        """Grows with everything that is computed or exchanged."""
        events = [link.num_events for link in (self._lanes, self._ring) if link is not None]
        return self._num_steps + sum(events)

    @property
    def waited_s(self) -> dict[str, float]:
        """Seconds in collectives so far, waiting for others included, by the axis of parallelism."""
        axes = {"tensor": self._lanes, "pipeline": self._ring}
        return {axis: link.waited_s for axis, link in axes.items() if link is not None}


def num_wanted(chunk: Chunk) -> int:
    """Rows of a chunk whose hidden states are asked for."""
    return {"all": len(chunk.token_ids), "last": 1, "none": 0}[chunk.rows]
