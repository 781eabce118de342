"""What this machine can do at most: bytes read per second, multiplications per second.

Measured here and now with torch on all cores, best of several, since a limit is what is reached when nothing
is in the way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

READ_BYTES = 256 << 20
MATRIX = 1024
TRIES = 12


@dataclass(frozen=True, slots=True)
class Limits:
    read_bytes_per_s: float
    bf16_flops: float
    int8_flops: float

    @classmethod
    def measured(cls) -> Limits:
        import torch

        torch.set_num_threads(os.cpu_count() or 1)
        numbers = torch.ones(READ_BYTES // 8, dtype=torch.int64)
        a = torch.randn(MATRIX, MATRIX).to(torch.bfloat16)
        b = torch.randint(-100, 100, (MATRIX, MATRIX), dtype=torch.int8)
        flops = 2.0 * MATRIX**3
        return cls(
            READ_BYTES / _fastest_s(numbers.sum),
            flops / _fastest_s(lambda: a @ a),
            flops / _fastest_s(lambda: torch._int_mm(b, b)),
        )


@dataclass(frozen=True, slots=True)
class Work:
    """Of one model in one format: what a token costs at least."""

    weight_bytes: int  # read once per step
    layer_parameters: int  # multiplied for every token
    head_parameters: int  # for every token that is sampled
    is_int8: bool  # products are of 8 bits

    def decode_s(self, limits: Limits, num_streams: int) -> float:
        """A step of so many sequences: the slower of reading the weights and multiplying."""
        flops = 2.0 * (self.layer_parameters + self.head_parameters) * num_streams
        return max(self.weight_bytes / limits.read_bytes_per_s, flops / self._flops(limits))

    def prefill_s(self, limits: Limits, num_tokens: int) -> float:
        return (2.0 * self.layer_parameters * num_tokens + 2.0 * self.head_parameters) / self._flops(limits)

    def _flops(self, limits: Limits) -> float:
        return limits.int8_flops if self.is_int8 else limits.bf16_flops


def _fastest_s(work: Callable[[], object]) -> float:
    fastest = float("inf")
    for _ in range(TRIES):
        started_s = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - started_s)
    return fastest
