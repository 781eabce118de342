"""One of a request's n outputs, from arrival to its end, and the moves it may make on the way.

    event      from      to
    admit      waiting   running
    preempt    running   waiting    (its blocks are released; it computes its tokens again)
    finish     any live  finished

A sequence advances `num_computed_tokens` toward the tokens it knows; there is no prefill state and no
decode state. Its block table is append-only until it is released as a whole.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from workers.sampling.params import SamplingParams
from workers.speculation import Drafter


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


TRANSITIONS = {
    ("admit", State.WAITING): State.RUNNING,
    ("preempt", State.RUNNING): State.WAITING,
    ("finish", State.WAITING): State.FINISHED,
    ("finish", State.RUNNING): State.FINISHED,
}
_STORY_EVENTS = 16


class InvalidTransition(Exception):
    """A move that is not in the table; the message tells what happened to the sequence before."""


class Sequence:
    """Sequence `index` of a request. A sequence with a `leader` shares the leader's prompt, and waits until
    the leader has computed it, so that it finds the prompt in the cache."""

    __slots__ = (
        "admitted_s",
        "arrived_s",
        "block_table",
        "drafter",
        "hashes",
        "index",
        "leader",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_hit_blocks",
        "num_prompt_tokens",
        "params",
        "request_id",
        "salt",
        "state",
        "story",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        index: int,
        prompt_ids: list[int],
        params: SamplingParams,
        salt: bytes = b"",
        now: float = 0.0,
        leader: Sequence | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.request_id = request_id
        self.index = index
        self.params = params
        self.salt = salt
        self.leader = leader
        self.drafter = drafter  # None: nothing is drafted
        self.num_prompt_tokens = len(prompt_ids)
        self.token_ids = list(prompt_ids)  # the prompt, then what was generated
        self.hashes: list[bytes] = []  # of the full blocks of `token_ids`, as far as they were asked for
        self.block_table: list[int] = []
        self.num_computed_tokens = 0  # tokens whose KV is in the block table
        self.num_hit_blocks = 0  # blocks at the head of the table that came from the prefix cache
        self.num_cached_tokens = 0  # those found in the prefix cache at the first admission
        self.arrived_s = now
        self.admitted_s: float | None = None
        self.state = State.WAITING
        self.story: list[str] = []

    def __repr__(self) -> str:
        return f"Sequence({self.request_id}/{self.index}, {self.state.value}, {len(self.token_ids)} tokens)"

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens whose KV is still to be computed; 1 while it decodes."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        return self.num_uncomputed_tokens == 1 and self.num_output_tokens > 0

    @property
    def is_live(self) -> bool:
        return self.state is not State.FINISHED

    @property
    def is_held_back(self) -> bool:
        """Whether it should wait for its leader's prompt."""
        leader = self.leader
        return leader is not None and leader.is_live and leader.num_output_tokens == 0

    @property
    def can_read_cache(self) -> bool:
        """The prompt's log-probabilities need every prompt token to be computed by the sequence that tells
        them; all others may reuse blocks."""
        return self.params.num_prompt_logprobs is None or self.index > 0

    @property
    def queue_s(self) -> float | None:
        """Seconds from arrival to first admission; None until then."""
        return None if self.admitted_s is None else self.admitted_s - self.arrived_s

    def move(self, event: str) -> None:
        """Make the move called `event`. Raises InvalidTransition."""
        target = TRANSITIONS.get((event, self.state))
        if target is None:
            raise InvalidTransition(
                f"{self!r} cannot {event}; its last moves: {', '.join(self.story) or 'none'}"
            )
        self.story = [*self.story[1 - _STORY_EVENTS :], f"{event} at {self.num_computed_tokens}"]
        self.state = target

    def finish_reason_for(
        self, token_id: int, num_before: int, eos_ids: Collection[int], max_context_tokens: int
    ) -> str | None:
        """Why the sequence ends with `token_id`, which comes after `num_before` other new tokens: "stop",
        "length" or None if it goes on."""
        params = self.params
        if token_id in params.stop_token_ids or (token_id in eos_ids and not params.ignore_eos):
            return "stop"
        num_new = num_before + 1
        if self.num_output_tokens + num_new >= params.max_tokens:
            return "length"
        return "length" if self.num_tokens + num_new >= max_context_tokens else None
