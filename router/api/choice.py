"""One output sequence, from the worker's deltas to what the client may see of it.

Whether the answer is streamed or not, its text comes from here, so both are the same text. It holds no
stop string and no EOS, ends where the sequence ends, and never changes once it was given out. After the
end, further deltas (a worker hears of a cancel late) are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from router.api.logprobs import LogprobLedger, TokenLogprob
from router.api.prepared import Prepared, Prompt
from router.text.stop import StopMatcher
from router.text.tokenizer import ModelText
from workers.errors import EngineFault, GrammarError, WorkerLost, error_of
from workers.wire import Delta, Logprob


class Piece(msgspec.Struct, frozen=True):
    """What one delta lets the client see. `logprobs` is None unless they were asked for.

    `finish` is "stop" or "length" with the last piece. With `must_cancel` the worker does not know that
    the sequence is over and must be told.
    """

    text: str = ""
    logprobs: list[TokenLogprob] | None = None
    finish: str | None = None
    must_cancel: bool = False


_NOTHING = Piece()


class Echo:
    """The prompt as the head of each of its choices; sequence 0's first delta has its log-probabilities."""

    def __init__(self, prompt: Prompt, text: ModelText) -> None:
        self.text = prompt.text
        self._prompt = prompt
        self._model = text
        self._entries: list[TokenLogprob] | None = None

    def entries(self, delta: Delta) -> list[TokenLogprob]:
        """The prompt's entries. Raises EngineFault if the worker has not sent them in time."""
        if delta.prompt_logprobs is not None:
            self._entries = self._placed(delta.prompt_logprobs)
        if self._entries is None:
            raise EngineFault("the worker sent no log-probabilities of the prompt")
        return self._entries

    def _placed(self, logprobs: list[Logprob]) -> list[TokenLogprob]:
        """The entries with their offsets; a BOS that the client did not write has no width."""
        card = self._model.card
        detokenizer = self._model.detokenizer(skip_special_tokens=False)
        offset, entries = 0, []
        for position, logprob in enumerate(logprobs):
            start = min(offset, len(self.text))
            entries.append(TokenLogprob(logprob.token_id, logprob.logprob, logprob.top, start))
            is_ours = position == 0 and logprob.token_id == card.bos_id
            if not (is_ours and not self.text.startswith(card.bos_token or "\0")):
                offset += len(detokenizer.feed((logprob.token_id,)))
        return entries


class Choice:
    """The state of one sequence. `num_completion_tokens` counts all that it generated, EOS included."""

    __slots__ = (
        "_detokenizer",
        "_echo",
        "_grammar_param",
        "_has_begun",
        "_ledger",
        "_matcher",
        "_min_tokens",
        "_num_shown",
        "_scores_only",
        "_stop_ids",
        "finish",
        "num_cached_tokens",
        "num_completion_tokens",
    )

    def __init__(
        self, prepared: Prepared, prompt: Prompt, text: ModelText, stop_ids: frozenset[int], echo: Echo | None
    ) -> None:
        self._detokenizer = text.detokenizer(
            skip_special_tokens=prepared.skip_special_tokens, continues=prompt.has_text
        )
        self._matcher = None
        if prepared.stops is not None:
            self._matcher = StopMatcher(prepared.stops, include=prepared.include_stop)
        self._stop_ids = stop_ids
        self._min_tokens = prompt.params.min_tokens
        self._scores_only = prepared.scores_only
        self._grammar_param = prepared.grammar_param
        self._echo = echo
        self._num_shown = len(echo.text) if echo else 0
        self._ledger = LogprobLedger(self._num_shown) if prepared.num_logprobs is not None else None
        self._has_begun = False
        self.finish: str | None = None
        self.num_cached_tokens: int | None = None
        self.num_completion_tokens = 0

    def feed(self, delta: Delta) -> Piece:
        """What this delta lets the client see.

        Raises the error that the worker told when it failed the sequence, WorkerLost when it gave it up.
        """
        if self.finish is not None:
            return _NOTHING
        if delta.finish == "error":
            self.finish = "error"
            error = error_of(delta.error_code, delta.error or "the worker failed this request")
            if isinstance(error, GrammarError):
                error.param = self._grammar_param
            raise error
        if delta.finish == "cancelled":
            self.finish = "cancelled"
            raise WorkerLost("the worker gave this request up before it was finished; send it again")
        if self._has_begun:
            return self._advance(delta)
        self._has_begun = True
        self.num_cached_tokens = delta.num_cached_tokens
        if self._echo is None:
            return self._advance(delta)
        entries = self._echo.entries(delta) if self._ledger is not None else None
        return _behind(self._echo.text, entries, self._advance(delta))

    def _advance(self, delta: Delta) -> Piece:
        if self._scores_only:
            self.finish = "length"
            return Piece("", None, "length", delta.finish is None)
        token_ids: Sequence[int] = delta.token_ids
        if delta.finish == "stop" and token_ids and token_ids[-1] in self._stop_ids:
            token_ids = token_ids[:-1]
        if self._matcher is not None or self._ledger is not None:
            return self._advance_watched(delta, token_ids)
        self.num_completion_tokens += len(delta.token_ids)
        text = self._detokenizer.feed(token_ids)
        if delta.finish is None:
            return Piece(text)
        self.finish = delta.finish
        return Piece(text + self._detokenizer.flush(), None, self.finish)

    def _advance_watched(self, delta: Delta, token_ids: Sequence[int]) -> Piece:
        """Token by token, so that neither the cut nor the entries depend on how tokens are grouped."""
        matcher, ledger = self._matcher, self._ledger
        shown = ""
        entries: list[TokenLogprob] | None = None if ledger is None else []
        for position, token_id in enumerate(token_ids):
            self.num_completion_tokens += 1
            text = self._detokenizer.feed((token_id,))
            if ledger is not None and delta.logprobs is not None:
                is_amid = self._detokenizer.is_amid_character
                ledger.add(delta.logprobs[position], len(text), is_amid_character=is_amid)
            shown += self._show(text)
            if matcher is not None and matcher.is_matched:
                return self._stopped(shown, entries, delta)
            if ledger is not None and entries is not None:
                entries += ledger.release(self._num_shown)
        if delta.finish is None:
            return Piece(shown, entries)
        self.num_completion_tokens += len(delta.token_ids) - len(token_ids)
        shown += self._show(self._detokenizer.flush())
        if matcher is not None:
            if matcher.is_matched:
                return self._stopped(shown, entries, delta)
            shown += self._note(matcher.flush())
        if ledger is not None and entries is not None:
            entries += ledger.release(self._num_shown)
        self.finish = delta.finish
        return Piece(shown, entries, self.finish)

    def _show(self, text: str) -> str:
        """Text past the matcher, which does not see that of the first `min_tokens` tokens."""
        if self._matcher is not None and self.num_completion_tokens > self._min_tokens:
            text = self._matcher.feed(text)
        return self._note(text)

    def _note(self, text: str) -> str:
        self._num_shown += len(text)
        return text

    def _stopped(self, shown: str, entries: list[TokenLogprob] | None, delta: Delta) -> Piece:
        self.finish = "stop"
        if self._ledger is not None and entries is not None:
            entries += self._ledger.cut(self._num_shown)
        return Piece(shown, entries, "stop", must_cancel=delta.finish is None)


def _behind(text: str, entries: list[TokenLogprob] | None, piece: Piece) -> Piece:
    """The piece with the prompt before it."""
    if entries is not None:
        entries = entries + (piece.logprobs or [])
    return Piece(text + piece.text, entries, piece.finish, piece.must_cancel)
