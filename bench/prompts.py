"""The prompts of a measurement: different for every round, the same for both sides and for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from deploy.bench.request import BenchRequest
from deploy.bench.words import prose


@dataclass(frozen=True, slots=True)
class Point:
    """What is measured: so many requests through so many streams, with outputs of one length.

    Of several requests with shared words, all but the first find them in the cache."""

    name: str
    num_streams: int
    num_requests: int
    num_words: int
    num_output_tokens: int
    num_shared_words: int = 0  # with which all requests of one measurement begin

    def requests(self, seed: str) -> list[BenchRequest]:
        """Prose that no other seed or point has, so that no prefix is found in a cache."""
        shared = prose(random.Random(f"{seed}-{self.name}"), self.num_shared_words)
        return [
            BenchRequest((f"{shared} {self._own(seed, number)}".lstrip(),), self.num_output_tokens)
            for number in range(self.num_requests)
        ]

    def _own(self, seed: str, number: int) -> str:
        return prose(random.Random(f"{seed}-{self.name}-{number}"), self.num_words)
