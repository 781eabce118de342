"""How the ranks of a gang that has met are connected: through shared memory where they can, else through
torch.distributed. Every rank decides alike, from the roster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workers.config import EngineConfig
from workers.model.parts import Cut
from workers.shards import shared
from workers.shards.distributed import Distributed
from workers.shards.lanes import DistributedLanes, ShardLanes, SharedLanes
from workers.shards.meeting import Members
from workers.shards.messages import Seat
from workers.shards.ring import DistributedEdge, Edge, Ring, SharedEdge
from workers.shards.shared import SharedExchange, SharedMailbox, SharedMemory

LETTER_BYTES = 1 << 20
DRAFT_ROWS = 16  # of a step, besides one row per sequence


@dataclass(frozen=True, slots=True)
class Transport:
    """What rank `number` needs to be connected."""

    cut: Cut
    number: int
    members: Members
    config: EngineConfig
    device: torch.device

    def lanes(self) -> ShardLanes | None:
        """To the other lanes of this stage; None if there are none."""
        size, part = self.cut.tensor, self.cut.parts[self.number]
        if size == 1:
            return None
        first = part.stage * size
        ranks = range(first, first + size)
        name = f"lanes/{part.stage}"
        if not self._shares(ranks):
            return DistributedLanes(self._group(name, part.lane, size))
        capacity = self._capacity()
        num_bytes = SharedExchange.bytes_for(size, capacity)
        memory = self._memory(name, num_bytes, is_maker=part.lane == 0)
        return SharedLanes(SharedExchange(memory, part.lane, size, capacity, self._spins()), part.lane)

    def ring(self) -> Ring | None:
        """To the neighbouring stages; None if there is one stage only."""
        part, num_ranks = self.cut.parts[self.number], len(self.cut.parts)
        if self.cut.pipeline == 1:
            return None
        previous = (self.number - self.cut.tensor) % num_ranks
        if part.is_first:  # begins where all others end: a ring in which all wait for the next never closes
            onward = self._edge(self.number, is_sender=True)
            return Ring(onward, self._edge(previous, is_sender=False))
        inward = self._edge(previous, is_sender=False)
        return Ring(self._edge(self.number, is_sender=True), inward)

    def _edge(self, sender: int, is_sender: bool) -> Edge:
        name, receiver = f"edge/{sender}", (sender + self.cut.tensor) % len(self.cut.parts)
        if not self._shares([sender, receiver]):
            return DistributedEdge(self._group(name, 0 if is_sender else 1, 2))
        memory = self._memory(name, SharedMailbox.bytes_for(LETTER_BYTES), is_maker=is_sender)
        return SharedEdge(SharedMailbox(memory, LETTER_BYTES, self._spins()))

    def _shares(self, ranks: Sequence[int]) -> bool:
        seats: list[Seat] = [self.members.seats[rank] for rank in ranks]
        return (
            self.config.collectives == "auto"
            and self.device.type == "cpu"
            and all(seat.shares and seat.machine == seats[0].machine for seat in seats)
        )

    def _memory(self, name: str, num_bytes: int, is_maker: bool) -> SharedMemory:
        store = self.members.store
        if is_maker:
            memory = SharedMemory(num_bytes)
            store.set(name, memory.path)
            return memory
        return SharedMemory(num_bytes, store.get(name).decode())

    def _group(self, name: str, rank: int, size: int) -> Distributed:
        return Distributed(self.members.store, name, rank, size, self.members.host, self.device)

    def _capacity(self) -> int:
        """Bytes: the sums of the largest step at once."""
        config = self.config
        num_rows = config.max_step_tokens + config.max_sequences + DRAFT_ROWS
        widest = max(part.vocabulary.size for part in self.cut.parts)
        return -(-max(4 * num_rows * self.cut.whole.hidden_size, 4 * widest) // 64) * 64

    def _spins(self) -> int:
        machine = self.members.seats[self.number].machine
        num_here = sum(seat.machine == machine for seat in self.members.seats)
        return shared.spins(num_here * max(self.config.threads, 1))
