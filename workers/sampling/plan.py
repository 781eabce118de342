"""What the sampler has to do for each row of a step, as plain numbers. The order is the specification:

    1  raw log-probabilities, of the rows that report them
    2  ids that must not come: what the grammar forbids; EOS and stop ids until min_tokens are out
    3  logit bias
    4  penalties: repetition (prompt and output), then frequency and presence (output)
    5  temperature 0: the largest logit, the first of equals
       else: temperature, then min-p, then top-k, then top-p, then one uniform number picks by the
       cumulative probability of what is left, in order of falling probability

The uniform number is that of (seed + index, position), so that neither the batch, nor preemption, nor
another worker changes what is sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workers.sampling.grammar import Masks
from workers.sampling.params import SamplingParams
from workers.sampling.uniforms import uniform

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Edits:
    """Sparse changes to the logits: entry i concerns logits[rows[i], ids[i]] and has the value values[i]."""

    rows: Ints
    ids: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Filters:
    """How one row that is not greedy draws; `top_k` 0 is no limit."""

    row: int
    temperature: float
    min_p: float
    top_k: int
    top_p: float
    uniform: float

    @property
    def is_open(self) -> bool:
        """Whether every token stays possible."""
        return self.min_p == 0.0 and self.top_k == 0 and self.top_p >= 1.0


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """All rows of a step. `num_logprobs` is None for a row that reports none."""

    num_logprobs: list[int | None]
    banned: Edits
    biased: Edits
    repeated: Edits  # the value divides positive logits and multiplies negative ones
    penalised: Edits  # the value is subtracted
    drawn: list[Filters]
    masks: Masks | None = None  # of the rows that have a grammar


class TokenCounts:
    """How often each token has come, kept as two growing arrays."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._ids: Ints = np.empty(64, np.int64)
        self._counts: Ints = np.empty(64, np.int64)

    def add(self, token_id: int, count: int = 1) -> None:
        """`count` 0 notes that the token is there without having come."""
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = len(self._places)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
            self._ids[place], self._counts[place] = token_id, 0
        self._counts[place] += count

    @property
    def ids(self) -> Ints:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Ints:
        return self._counts[: len(self._places)]


class RowState:
    """What sampling has to remember of one sequence. It survives preemption."""

    def __init__(
        self,
        params: SamplingParams,
        index: int,
        prompt_ids: Sequence[int],
        eos_ids: Iterable[int],
        vocab_size: int,
    ) -> None:
        self.params = params
        self._seed = params.seed + index
        self._num_output_tokens = 0
        self._ending_ids = [id_ for id_ in {*eos_ids, *params.stop_token_ids} if id_ < vocab_size]
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias_values = np.fromiter(params.logit_bias.values(), np.float32)
        self._has_repetition = params.repetition_penalty != 1.0
        self._has_penalties = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        # Whether its logits are ever changed before it draws.
        self.may_edit = bool(
            params.min_tokens or params.logit_bias or self._has_repetition or self._has_penalties
        )
        self._known = TokenCounts()
        self._output = TokenCounts()
        if self._has_repetition:
            for token_id in prompt_ids:
                self._known.add(token_id, 0)

    def observe(self, token_id: int) -> None:
        """The sequence has got this token."""
        self._num_output_tokens += 1
        if self._has_repetition:
            self._known.add(token_id, 0)
        if self._has_penalties:
            self._output.add(token_id)

    @property
    def banned_ids(self) -> list[int]:
        return self._ending_ids if self._num_output_tokens < self.params.min_tokens else []

    @property
    def bias(self) -> tuple[Ints, Floats]:
        return self._bias_ids, self._bias_values

    @property
    def repetition(self) -> tuple[Ints, float]:
        return self._known.ids, self.params.repetition_penalty

    @property
    def penalties(self) -> tuple[Ints, Floats]:
        """Ids of the output and what is subtracted from the logit of each."""
        params, counts = self.params, self._output.counts
        return self._output.ids, (params.frequency_penalty * counts + params.presence_penalty).astype(
            np.float32
        )

    def filters(self, row: int, num_before: int) -> Filters:
        """For the token after `num_before` others that are not observed yet."""
        params = self.params
        draw = uniform(self._seed, self._num_output_tokens + num_before)
        return Filters(row, params.temperature, params.min_p, params.top_k, params.top_p, draw)


class _EditList:
    """Collects edits row by row."""

    def __init__(self) -> None:
        self._rows: list[Ints] = []
        self._ids: list[Ints] = []
        self._values: list[Floats] = []

    def add(self, row: int, ids: Sequence[int] | Ints, values: float | Floats) -> None:
        if len(ids):
            self._rows.append(np.full(len(ids), row, np.int64))
            self._ids.append(np.asarray(ids, np.int64))
            self._values.append(np.broadcast_to(np.asarray(values, np.float32), len(ids)))

    def done(self) -> Edits:
        if not self._rows:
            return _NO_EDITS
        return Edits(np.concatenate(self._rows), np.concatenate(self._ids), np.concatenate(self._values))


_NO_EDITS = Edits(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


def build_plan(
    rows: Sequence[RowState], nums_before: Sequence[int] | None = None, masks: Masks | None = None
) -> SamplingPlan:
    """The plan for a token of each of these sequences, row i being that of rows[i]: the next one, or the one
    after `nums_before[i]` others; only sequences that may not edit can have such."""
    nums_before = nums_before or [0] * len(rows)
    banned, biased, repeated, penalised = _EditList(), _EditList(), _EditList(), _EditList()
    for index, row in enumerate(rows):
        if not row.may_edit:
            continue
        banned.add(index, row.banned_ids, 0.0)
        biased.add(index, *row.bias)
        repeated.add(index, *row.repetition)
        penalised.add(index, *row.penalties)
    return SamplingPlan(
        num_logprobs=[row.params.num_logprobs for row in rows],
        banned=banned.done(),
        biased=biased.done(),
        repeated=repeated.done(),
        penalised=penalised.done(),
        drawn=[
            row.filters(index, num_before)
            for index, (row, num_before) in enumerate(zip(rows, nums_before, strict=True))
            if not row.params.is_greedy
        ],
        masks=masks,
    )
