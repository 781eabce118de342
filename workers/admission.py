"""Whether one more sequence may start: the largest KV demand that its start could lead to must fit.

Each running sequence holds some tokens and is expected to grow by some more before it ends and gives all
of them back. Sorted by expected growth, descending, the demand at the moment when the k-th ends is

    sum of what the first k hold  +  k * growth of the k-th

and the peak is the largest of these (the formula is LightLLM's, "past-future scheduler", ASPLOS 2025).
How much a sequence grows is estimated from the outputs that ended lately; its max_tokens is the cap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW = 256  # ended outputs to learn from
QUANTILE = 0.9  # the estimate is exceeded by this much of the window only
PRIOR_TOKENS = 512  # expected of every output until enough have ended
ENOUGH = 16


@dataclass(frozen=True, slots=True)
class Demand:
    """What one sequence holds now that nobody shares, and by how much it is expected to grow, in tokens."""

    held: int
    growth: int


def peak_tokens(demands: Iterable[Demand]) -> int:
    """The largest number of tokens that will be held at once, if each grows as expected and then ends."""
    peak = held = 0
    for count, demand in enumerate(sorted(demands, key=lambda d: d.growth, reverse=True), start=1):
        held += demand.held
        peak = max(peak, held + count * demand.growth)
    return peak


class OutputEstimator:
    """Expects of an output what the outputs that ended lately came to."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._sorted: list[int] | None = None

    def observe(self, num_output_tokens: int) -> None:
        """An output ended by itself with so many tokens."""
        self._recent.append(num_output_tokens)
        self._sorted = None

    def growth(self, num_output_tokens: int, max_tokens: int) -> int:
        """Tokens that an output which has `num_output_tokens` now will still get, as far as one can tell."""
        if self._sorted is None:
            self._sorted = sorted(self._recent)
        longer = self._sorted[bisect_right(self._sorted, num_output_tokens) :]
        if len(self._recent) < ENOUGH:
            expected = max(PRIOR_TOKENS, 2 * num_output_tokens)
        elif longer:
            expected = longer[int(QUANTILE * (len(longer) - 1))]
        else:  # longer than all that were seen: as long again
            expected = 2 * max(num_output_tokens, 1)
        return max(min(expected, max_tokens) - num_output_tokens, 0)
