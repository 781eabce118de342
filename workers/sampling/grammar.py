"""Grammars: which tokens may come next, so that an output is what its request said it must be.

A grammar walks with its sequence: `fill` tells what may follow what it has accepted so far, `accept` takes
it a token further. EOS may come only where the output is complete. Compiling is bounded in time and size
and needs nothing of the engine; the rest runs between a step's logits and its sampling, some microseconds
a row. A request without a grammar has none of this.

V is the vocabulary; a mask is ceil(V / 32) int32 words, the lowest bit of the first word being token 0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import llguidance
import numpy as np
import numpy.typing as npt

from workers.errors import GrammarError
from workers.sampling.params import JSON_WHITESPACE, GrammarSpec

Bits = npt.NDArray[np.int32]

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Masks:
    """Row i of `bits` says which tokens may come in row rows[i] of a step."""

    rows: list[int]
    bits: Bits


class Grammar(Protocol):
    """Of one sequence. Once `fault` is set, the grammar cannot go on and its masks allow everything."""

    @property
    def fault(self) -> str | None: ...

    def fork(self) -> Grammar:
        """One that has accepted the same and goes its own way."""
        ...

    def accept(self, token_id: int) -> None:
        """The sequence has got this token."""
        ...

    def fill(self, bits_RW: Bits, draft: Sequence[int]) -> None:
        """Row 0: what may come next; row i: what may come after draft[:i]. Rows behind a token that may not
        come, or that ends the output, are left open."""
        ...


class GrammarCompiler(Protocol):
    """Of one model. Thread-safe."""

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Raises GrammarError for what is no grammar, or is more than the limits allow."""
        ...


class LlguidanceCompiler:
    """llguidance: a lexer of regular expressions under an Earley parser, with fuel for every step."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._eos_ids = frozenset(eos_ids)
        self._limits = llguidance.LLParserLimits(verbose_errors=False)
        try:
            self._tokenizer = llguidance.LLTokenizer(
                tokenizer_json.decode(), n_vocab=vocab_size, eos_token=sorted(eos_ids)
            )
        except Exception as error:  # it raises whatever it meets
            raise GrammarError(f"this model's tokenizer allows no structured output: {error}") from error

    def compile(self, spec: GrammarSpec) -> Grammar:
        try:
            grammar = _source(spec)
        except ValueError as error:
            raise GrammarError(f"this is no {spec.kind}: {error}") from error
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(f"this {spec.kind} cannot be compiled: {_brief(matcher.get_error())}")
        return _LlguidanceGrammar(matcher, self._eos_ids)


class _LlguidanceGrammar:
    __slots__ = ("_eos_ids", "_matcher", "fault")

    def __init__(self, matcher: llguidance.LLMatcher, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self.fault: str | None = None

    def fork(self) -> Grammar:
        return _LlguidanceGrammar(self._matcher.deep_copy(), self._eos_ids)

    def accept(self, token_id: int) -> None:
        if token_id not in self._eos_ids and not self._matcher.consume_token(token_id):
            self._note_fault()

    def fill(self, bits_RW: Bits, draft: Sequence[int]) -> None:
        matcher = self._matcher
        num_valid = matcher.validate_tokens(list(draft)) if draft else 0
        self._fill_row(bits_RW[0])
        num_ahead = 0
        for place, token_id in enumerate(draft[:num_valid], 1):
            if token_id in self._eos_ids or not matcher.consume_token(token_id):
                break
            num_ahead += 1
            self._fill_row(bits_RW[place])
        bits_RW[1 + num_ahead :] = -1
        if num_ahead and not matcher.rollback(num_ahead):
            self._note_fault()
        if matcher.is_error():
            self._note_fault()
            bits_RW[:] = -1

    def _fill_row(self, bits_W: Bits) -> None:
        self._matcher.unsafe_compute_mask_ptr(bits_W.ctypes.data, bits_W.nbytes)

    def _note_fault(self) -> None:
        self.fault = _brief(self._matcher.get_error()) or "a token came that it does not allow"


def new_bits(num_rows: int, vocab_size: int) -> Bits:
    """Room for so many masks."""
    return np.empty((num_rows, -(-vocab_size // WORD_BITS)), np.int32)


def _source(spec: GrammarSpec) -> str:
    """The grammar in llguidance's own form. Raises ValueError."""
    match spec.kind:
        case "json_schema":
            return llguidance.LLMatcher.grammar_from_json_schema(
                spec.source, overrides={"whitespace_pattern": JSON_WHITESPACE}
            )
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(spec.source)
        case "grammar":
            return llguidance.grammar_from("grammar", spec.source)


def _brief(message: str) -> str:
    """The first lines of a parser's report."""
    return message.strip()[:500]
