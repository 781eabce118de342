"""What one request asks of the sampler, as it travels from the router to the worker.

The router has validated every range before it builds one of these; the engine trusts them.
The meaning of each field, and the order in which they act, is the spec in `workers/sampling/plan.py`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# What may stand between the parts of a JSON text. A small model would indent for ever if it were let.
JSON_WHITESPACE = r"[ \t\r\n]{0,24}"


class GrammarSpec(msgspec.Struct, frozen=True, array_like=True):
    """What every output must be: valid under a JSON schema, a match of a regular expression (both whole),
    or a sentence of a grammar in Lark's or GBNF's notation."""

    kind: Literal["json_schema", "regex", "grammar"]
    source: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling of one request; all of its n sequences share it, sequence i draws with seed + i.

    `temperature` 0 means greedy. `top_k` 0 and `top_p` 1 and `min_p` 0 switch those filters off.
    `num_logprobs` None returns none, k returns the sampled token's and the k best (raw, before any
    processing); `num_prompt_logprobs` likewise for the prompt.
    """

    max_tokens: int
    min_tokens: int = 0
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    grammar: GrammarSpec | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0
