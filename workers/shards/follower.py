"""A rank that is not the leader: it carries out what it is told, step by step, until told to stop."""

from __future__ import annotations

from collections.abc import Callable

import torch

from workers.errors import GangLost
from workers.model.batch import Chunk
from workers.model.cache import KvCache
from workers.shards.leader import ROWS
from workers.shards.meeting import Members
from workers.shards.messages import Allocate, Forward, Logits, Ready, Stop
from workers.shards.pulse import Pulse
from workers.shards.rank import Rank
from workers.shards.tables import TableReceiver


class Follower:
    """`run` is to be called on the thread that has loaded the decoder. `on_lost` hears, on another thread,
    that the leader is lost: `run` may then wait for ever."""

    def __init__(
        self, rank: Rank, number: int, members: Members, on_lost: Callable[[GangLost], object]
    ) -> None:
        self._rank = rank
        self._members = members
        self._steps = members.steps[0]
        self._tables = TableReceiver()
        self._cache: KvCache | None = None
        self._pulse = Pulse(
            members.pulses,
            members.killable(number),
            num_events=lambda: rank.num_events,
            is_busy=lambda: False,  # whether the gang gets on is the leader's to judge
            on_lost=on_lost,
        )
        decoder = rank.decoder
        self._steps.send(Ready(str(decoder.dtype), type(decoder).__name__, decoder.device.type))
        self._pulse.start()

    @torch.inference_mode()
    def run(self) -> None:
        """Follow until the leader says stop. Raises what a step raises, and GangLost."""
        try:
            while self._follow():
                pass
        except Exception as error:
            self._pulse.tell_failure(str(error) or type(error).__name__)
            raise
        finally:
            self._pulse.stop()
            self._members.close()

    def _follow(self) -> bool:
        match self._steps.receive():
            case Forward() as step:
                self._forward(step)
            case Logits(num_rows, hidden):
                self._logits(num_rows, hidden)
            case Allocate(num_blocks, block_tokens, dtype):
                decoder = self._rank.decoder
                self._cache = KvCache.of_blocks(
                    decoder.config, num_blocks, block_tokens, getattr(torch, dtype), decoder.device
                )
            case Stop():
                return False
            case other:
                raise GangLost(f"the leader sent {type(other).__name__}, which is no step")
        return True

    def _forward(self, step: Forward) -> None:
        assert self._cache is not None
        chunks = [
            Chunk(
                piece.token_ids,
                piece.start,
                self._tables.hear(piece.table, piece.num_known, piece.blocks),
                ROWS[piece.rows],
            )
            for piece in step.pieces
        ]
        hidden_RE = self._rank.forward(chunks, self._cache)
        if step.logits and hidden_RE is not None:
            self._rank.logits(hidden_RE)

    def _logits(self, num_rows: int, hidden: bytes) -> None:
        decoder = self._rank.decoder
        rows = torch.frombuffer(bytearray(hidden), dtype=decoder.dtype).to(decoder.device)
        self._rank.logits(rows.view(num_rows, -1))
