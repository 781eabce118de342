"""Workloads: what is asked, in which order. Iterating one twice gives the same requests.

synthetic   random words of a fixed length, or prose with lengths spread as in ShareGPT
trace       lengths, shared blocks and times from a trace file
corpus      prompts from a file of conversations
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Literal

from deploy.bench.corpus import Conversation
from deploy.bench.request import BenchRequest
from deploy.bench.traces import Trace, TraceEntry
from deploy.bench.words import TextScale, prose, random_words

TextKind = Literal["random", "sharegpt"]

# Mean lengths of ShareGPT's conversations as the PagedAttention paper gives them, spread log-normally.
SHAREGPT_INPUT_TOKENS, SHAREGPT_OUTPUT_TOKENS = 161, 338
_INPUT_SIGMA, _OUTPUT_SIGMA = 1.1, 0.9
_LENGTHS = (4, 1024)  # shortest and longest


class Synthetic:
    """As many requests as are asked for; `num_input_tokens` and `num_output_tokens` are exact or means."""

    num_requests: int | None = None
    has_times = False

    def __init__(
        self, kind: TextKind, num_input_tokens: int, num_output_tokens: int, scale: TextScale, seed: int
    ) -> None:
        self.name = f"{kind} text"
        self._kind = kind
        self._num_input, self._num_output = num_input_tokens, num_output_tokens
        self._scale = scale
        self._seed = seed

    def __iter__(self) -> Iterator[BenchRequest]:
        for number in itertools.count():
            rng = random.Random(f"{self._seed}-{number}")
            if self._kind == "random":
                text = random_words(rng, self._scale.num_words(self._num_input))
                yield BenchRequest((text,), self._num_output, self._num_input)
            else:
                num_input = _log_normal(rng, self._num_input, _INPUT_SIGMA)
                num_output = _log_normal(rng, self._num_output, _OUTPUT_SIGMA)
                yield BenchRequest((prose(rng, self._scale.num_words(num_input)),), num_output, num_input)


class Replay:
    """A trace's requests; lengths above the given limits are cut."""

    def __init__(
        self,
        trace: Trace,
        scale: TextScale,
        seed: int,
        max_input_tokens: int | None = None,
        max_output_tokens: int | None = None,
    ) -> None:
        self.name = f"trace {trace.name}"
        self.num_requests: int | None = len(trace.entries)
        self.has_times = trace.has_times
        self._trace = trace
        self._scale = scale
        self._seed = seed
        self._max_input, self._max_output = max_input_tokens, max_output_tokens

    def __iter__(self) -> Iterator[BenchRequest]:
        for number, entry in enumerate(self._trace.entries):
            num_input = min(entry.num_input_tokens, self._max_input or entry.num_input_tokens)
            num_output = min(entry.num_output_tokens, self._max_output or entry.num_output_tokens)
            text = self._text(number, entry, self._scale.num_words(num_input))
            yield BenchRequest((text,), num_output, num_input, entry.at_s)

    def _text(self, number: int, entry: TraceEntry, num_words: int) -> str:
        """Equal block ids make equal words, so that prompts share what they shared in the trace."""
        block_tokens = self._trace.block_tokens
        if block_tokens is None:
            return random_words(random.Random(f"{self._seed}-{number}"), num_words)
        block_words = max(round(block_tokens / self._scale.tokens_per_word), 1)
        blocks = [
            random_words(random.Random(f"{self._seed}-block-{block_id}"), block_words)
            for block_id in entry.block_ids[: -(-num_words // block_words)]
        ]
        return " ".join(" ".join(blocks).split()[:num_words])


class Corpus:
    """Conversations from a file, from the start again when there are not enough."""

    num_requests: int | None = None
    has_times = False

    def __init__(self, name: str, conversations: list[Conversation], max_tokens: int) -> None:
        self.name = f"prompts of {name}"
        self._conversations = conversations
        self._max_tokens = max_tokens

    def __len__(self) -> int:
        return len(self._conversations)

    def __iter__(self) -> Iterator[BenchRequest]:
        for turns in itertools.cycle(self._conversations):
            yield BenchRequest(turns, self._max_tokens)


def _log_normal(rng: random.Random, mean: float, sigma: float) -> int:
    drawn = rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
    return min(max(round(drawn), _LENGTHS[0]), max(_LENGTHS[1], round(mean)))
