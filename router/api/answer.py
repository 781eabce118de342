"""All choices of one HTTP request, and what they cost.

Deltas come by prompt and sequence, answers go out by choice; here the one becomes the other. The answer
is finished when each of its choices is, whether a worker or a stop string ended it.
"""

from __future__ import annotations

import msgspec

from router.api.choice import Choice, Echo, Piece
from router.api.prepared import Prepared
from router.text.tokenizer import ModelText
from workers.wire import Delta


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's usage object. A prompt counts once however many sequences go on from it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Answer:
    """The choices of `prepared`: sequence i of prompt p is choice p·n + i."""

    def __init__(self, prepared: Prepared, text: ModelText) -> None:
        self._prepared = prepared
        self.choices: list[Choice] = []
        for prompt in prepared.prompts:
            eos_ids = () if prompt.params.ignore_eos else text.card.eos_ids
            stop_ids = frozenset(eos_ids) | frozenset(prompt.params.stop_token_ids)
            echo = Echo(prompt, text) if prepared.echo else None
            self.choices += [Choice(prepared, prompt, text, stop_ids, echo) for _ in range(prepared.n)]
        self._num_open = len(self.choices)

    @property
    def is_finished(self) -> bool:
        return self._num_open == 0

    def feed(self, prompt: int, delta: Delta) -> tuple[int, Piece]:
        """The choice that the delta of this prompt's request belongs to, and what it adds.

        Raises what `Choice.feed` raises; then the whole request has failed.
        """
        index = prompt * self._prepared.n + delta.index
        piece = self.choices[index].feed(delta)
        if piece.finish is not None:
            self._num_open -= 1
        return index, piece

    @property
    def usage(self) -> Usage:
        """Tokens up to now. A prompt's cached tokens are those of its first sequence to be computed; the
        others find the whole prompt in the cache, because the first has put it there."""
        prepared = self._prepared
        num_prompt = num_cached = 0
        for position, prompt in enumerate(prepared.prompts):
            num_prompt += len(prompt.token_ids)
            group = self.choices[position * prepared.n : (position + 1) * prepared.n]
            num_cached += min(
                (c.num_cached_tokens for c in group if c.num_cached_tokens is not None), default=0
            )
        num_completion = sum(choice.num_completion_tokens for choice in self.choices)
        return Usage(num_prompt, num_completion, num_prompt + num_completion, PromptDetails(num_cached))
