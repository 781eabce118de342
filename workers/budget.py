"""How many prompt tokens a step may take on, so that the sequences that decode in it are not held up.

The time of a step is modelled as a sum of a constant, a cost per decoding sequence, a cost per prompt
token and a cost per token of context that is attended to; the four are fitted to the steps as they come,
by recursive least squares that forget. What the target step time leaves after decoding is spent on
prompts, and never less than a share of it: a batch that fills the target by itself must not keep those
who wait from their first token. With nobody decoding there is no one to hold up, and a step takes as much
as it may.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

FORGET = 0.99  # weight of the past per step: about the last hundred steps count
PROMPT_SHARE = 0.5  # of the target step time, for prompts at least
OUTLIER = 3.0  # a step that took longer than this times the prediction counts as this long
_SCALE = np.array([1.0, 1 / 16, 1 / 256, 1 / 16384])  # brings the features to like sizes


class StepBudget:
    """A step aims at `target_step_s`, and takes at least `min_tokens` so that every prompt goes on."""

    def __init__(self, target_step_s: float, min_tokens: int, max_tokens: int) -> None:
        self._target_s = target_step_s
        self._min_tokens = min(min_tokens, max_tokens)
        self._max_tokens = max_tokens
        self._costs_s: Vector = np.zeros(4)
        self._covariance: Vector = np.eye(4) * 1e3
        self._num_steps = 0

    def predict(self, num_decodes: int, num_prefill_tokens: int, context_tokens: int) -> float:
        """Expected seconds of such a step; `context_tokens` is the sum over its chunks of tokens seen."""
        features = _features(num_decodes, num_prefill_tokens, context_tokens)
        return float(features @ np.maximum(self._costs_s, 0.0))

    def prefill_tokens(self, num_decodes: int, context_tokens: int) -> int:
        """Prompt tokens that fit into the step beside `num_decodes` sequences that decode."""
        if num_decodes == 0:
            return self._max_tokens
        decode_s = self.predict(num_decodes, 0, context_tokens)
        left_s = max(self._target_s - decode_s, PROMPT_SHARE * self._target_s)
        per_token_s = max(float(self._costs_s[2] * _SCALE[2]), 0.0)
        if left_s >= per_token_s * self._max_tokens:
            return self._max_tokens
        return max(int(left_s / per_token_s), self._min_tokens)

    def observe(self, num_decodes: int, num_prefill_tokens: int, context_tokens: int, seconds: float) -> None:
        """A step of this make-up took `seconds`."""
        features = _features(num_decodes, num_prefill_tokens, context_tokens)
        self._num_steps += 1
        if self._num_steps > 16:
            seconds = min(
                seconds, OUTLIER * max(self.predict(num_decodes, num_prefill_tokens, context_tokens), 1e-4)
            )
        direction = self._covariance @ features
        gain = direction / (FORGET + features @ direction)
        self._costs_s = self._costs_s + gain * (seconds - float(features @ self._costs_s))
        self._covariance = (self._covariance - np.outer(gain, direction)) / FORGET
        # Steps of one kind only teach nothing of the other costs: do not let their uncertainty grow for ever.
        largest = float(np.max(np.diag(self._covariance)))
        if largest > 1e3:
            self._covariance *= 1e3 / largest


def _features(num_decodes: int, num_prefill_tokens: int, context_tokens: int) -> Vector:
    features: Vector = np.array([1.0, num_decodes, num_prefill_tokens, context_tokens]) * _SCALE
    return features
