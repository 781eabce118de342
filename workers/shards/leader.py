"""A gang as its engine sees it: one decoder, whose every step all ranks compute together.

Each step is announced to every follower by one message; the leader then computes its own share. Whatever goes
wrong in a step leaves the ranks at different places, so that any error there is the end of the gang.
Shapes: R wanted rows, E hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import torch

from workers.errors import ConfigError, GangLost
from workers.model.batch import Chunk, Rows
from workers.model.cache import KvCache, blocks_in
from workers.model.config import ModelConfig
from workers.shards.links import frame
from workers.shards.meeting import Members
from workers.shards.messages import Allocate, Forward, Logits, Message, Piece, Ready, Stop
from workers.shards.pulse import Pulse
from workers.shards.rank import Rank, num_wanted
from workers.shards.tables import TableSender

STOP_S = 1.0
READY_S = 600.0  # a large model is read from a slow disk
EAGER_ROWS = 128  # wanted rows whose logits are computed with the step itself
ROWS: tuple[Rows, ...] = ("all", "last", "none")


class GangDecoder:
    """See `Decoder`. `on_lost` hears, on a thread of its own, why the gang cannot go on."""

    def __init__(self, rank: Rank, members: Members, on_lost: Callable[[GangLost], object]) -> None:
        decoder = rank.decoder
        self.config: ModelConfig = rank.cut.whole
        self.dtype, self.device = decoder.dtype, decoder.device
        self.kv_dtypes, self.min_rows = decoder.kv_dtypes, decoder.min_rows
        self._rank = rank
        self._members = members
        self._tables = TableSender()
        self._ready: tuple[torch.Tensor, torch.Tensor] | None = None  # hidden states and their logits
        self._is_busy = False
        self.announced_s = 0.0  # time spent telling followers what to do
        self.num_announced = 0
        self.kernels = type(decoder).__name__
        self._expect_same(Ready(str(decoder.dtype), self.kernels, decoder.device.type))
        self._pulse = Pulse(
            members.pulses,
            members.killable(0),
            num_events=lambda: rank.num_events,
            is_busy=lambda: self._is_busy,
            on_lost=on_lost,
        )
        self._pulse.start()

    def new_cache(self, memory_bytes: int, block_tokens: int, dtype: torch.dtype) -> KvCache:
        """Every rank's share of so many bytes; a block has the same number on all."""
        configs = [part.config for part in self._rank.cut.parts]
        num_blocks = blocks_in(configs, memory_bytes, block_tokens, dtype)
        self._announce(Allocate(num_blocks, block_tokens, str(dtype).removeprefix("torch.")))
        return KvCache.of_blocks(configs[0], num_blocks, block_tokens, dtype, self.device)

    def forward(
        self, chunks: Sequence[Chunk], cache: KvCache, entering_TE: torch.Tensor | None = None
    ) -> torch.Tensor:
        pieces = [self._piece(chunk, cache.block_tokens, len(chunks)) for chunk in chunks]
        is_eager = 0 < sum(num_wanted(chunk) for chunk in chunks) <= EAGER_ROWS
        self._ready = None
        with _Share(self):
            self._announce(Forward(pieces, is_eager))
            hidden_RE = self._rank.forward(chunks, cache)
            assert hidden_RE is not None
            if is_eager:
                logits_RV = self._rank.logits(hidden_RE)
                assert logits_RV is not None
                self._ready = hidden_RE, logits_RV
        return hidden_RE

    def logits(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        if self._ready is not None and self._ready[0] is hidden_RE:
            return self._ready[1]
        rows = hidden_RE.contiguous().cpu().view(torch.uint8).numpy().tobytes()
        with _Share(self):
            message = frame(Logits(len(hidden_RE), rows))
            for follower in range(1, self._rank.cut.tensor):  # the head is on the first stage
                self._members.steps[follower].send_frame(message)
            logits_RV = self._rank.logits(hidden_RE)
        assert logits_RV is not None
        return logits_RV

    @property
    def waited_s(self) -> dict[str, float]:
        """See `Rank`."""
        return self._rank.waited_s

    @property
    def num_followers(self) -> int:
        return len(self._members.steps)

    @property
    def num_announced_bytes(self) -> int:
        return sum(link.num_sent_bytes for link in self._members.steps.values())

    def settle(self) -> None:
        """The engine has warmed up: what takes far longer from now on is a fault."""
        self._pulse.settle()

    def close(self) -> None:
        """Dissolve the gang in peace. Closing twice is harmless."""
        self._pulse.stop()
        steps = list(self._members.steps.values())
        for link in steps:
            with contextlib.suppress(GangLost):  # then it has ended already
                link.send(Stop())
        for link in steps:
            with contextlib.suppress(GangLost):  # it says nothing, and closes the link
                link.receive(STOP_S)
        self._members.close()

    def _announce(self, message: Message) -> None:
        started_s = time.perf_counter()
        data = frame(message)
        for link in self._members.steps.values():
            link.send_frame(data)
        self.announced_s += time.perf_counter() - started_s
        self.num_announced += 1

    def _piece(self, chunk: Chunk, block_tokens: int, num_chunks: int) -> Piece:
        num_needed = -(-chunk.end // block_tokens)
        table, num_known, blocks = self._tables.tell(chunk.block_table, num_needed, num_chunks)
        return Piece(chunk.token_ids, chunk.start, ROWS.index(chunk.rows), table, num_known, blocks)

    def _expect_same(self, own: Ready) -> None:
        for rank, link in self._members.steps.items():
            theirs = link.expect(Ready, READY_S)
            if theirs != own:
                raise ConfigError(
                    f"ranks of one worker must compute alike, but rank 0 has {_words(own)} and rank {rank} "
                    f"{_words(theirs)}; set weights, device and kernels so that all hosts can follow them"
                )


class _Share:
    """The leader's share of a step: meanwhile the gang should make progress, and errors are its end."""

    def __init__(self, gang: GangDecoder) -> None:
        self._gang = gang

    def __enter__(self) -> None:
        self._gang._is_busy = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._gang._is_busy = False
        if isinstance(error, Exception) and not isinstance(error, GangLost):
            raise GangLost(f"rank 0 failed: {error or type(error).__name__}") from error


def _words(ready: Ready) -> str:
    return f"{ready.decoder} in {ready.dtype.removeprefix('torch.')} on {ready.device}"
