"""The engine: one model replica, advanced one step at a time by a single thread.

A step is: the scheduler picks tokens, the model runs them, the sampler draws, the scheduler commits.
Requests enter by `submit` and leave by finishing, by `cancel` or by a fault; every way out goes through
the scheduler's one release function, so blocks can be neither lost nor freed twice. A step that raises
fails the requests that were in it and no others.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kvcache.events import KvEvent
from kvcache.hashing import BlockHasher
from kvcache.pool import BlockPool
from workers.budget import StepBudget
from workers.config import EngineConfig
from workers.errors import ConfigError, EngineFault, GangLost, GrammarError, HeadraceError
from workers.load.model import LoadedModel
from workers.model.batch import Chunk, Rows
from workers.model.cache import MAX_INT8_CONTEXT_TOKENS
from workers.model.decoder import Decoder
from workers.sampling.grammar import Grammar, Masks, new_bits
from workers.sampling.params import SamplingParams
from workers.sampling.plan import RowState, build_plan
from workers.sampling.sampler import Sampled, prompt_logprobs, sample
from workers.scheduler import Schedule, ScheduledChunk, Scheduler
from workers.sequence import Sequence
from workers.speculation import Drafter
from workers.wire import Delta, Load, Logprob, ModelCard, Submit

logger = logging.getLogger(__name__)

LOGITS_SLICE_ROWS = 128  # prompt log-probabilities are taken in slices, to bound the logits' memory


@dataclass(slots=True)
class StepOutput:
    """What one step produced. Of the requests in `finished_ids` nothing more will come."""

    load: Load
    deltas: list[Delta] = field(default_factory=list)
    finished_ids: list[str] = field(default_factory=list)
    events: list[KvEvent] = field(default_factory=list)
    num_decodes: int = 0
    num_prefill_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0  # drafted ones that sampling drew as well
    has_failed: bool = False
    seconds: float = 0.0

    @property
    def phase(self) -> str | None:
        """prefill, decode, mixed, or None if no token was computed."""
        if self.num_prefill_tokens:
            return "mixed" if self.num_decodes else "prefill"
        return "decode" if self.num_decodes else None


@dataclass(slots=True, eq=False)
class Request:
    """The sequences of one submitted request that have not finished yet, by index."""

    sequences: dict[int, Sequence]
    rows: dict[int, RowState]
    prompt_logprobs: list[Logprob] | None


@dataclass(frozen=True, slots=True)
class _Token:
    """A token that was drawn, and why the sequence ends with it, if it does."""

    id: int
    logprob: Logprob | None
    finish: str | None


class Engine:
    """Paged, continuously batched inference of one model. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        hash_key: bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        torch.set_num_threads(config.threads or os.cpu_count() or 1)
        self._model = model
        self._clock = clock
        decoder = model.decoder
        kv_dtype = _kv_dtype(decoder, config)
        self._cache = decoder.new_cache(config.kv_memory_bytes, config.block_tokens, kv_dtype)
        self._pool = BlockPool(self._cache.num_blocks)
        self.max_context_tokens = min(
            model.config.max_context_tokens,
            config.max_context_tokens or model.config.max_context_tokens,
            self._pool.num_blocks * config.block_tokens,
            MAX_INT8_CONTEXT_TOKENS if kv_dtype is torch.int8 else model.config.max_context_tokens,
        )
        self._budget = StepBudget(config.target_step_s, config.block_tokens, config.max_step_tokens)
        self._scheduler = Scheduler(
            self._pool,
            BlockHasher(hash_key),
            self._budget,
            block_tokens=config.block_tokens,
            max_sequences=config.max_sequences,
            max_context_tokens=self.max_context_tokens,
        )
        self._max_draft_tokens = config.max_draft_tokens if config.speculation == "ngram" else 0
        self._requests: dict[str, Request] = {}
        self._grammars: dict[Sequence, Grammar] = {}  # of the live sequences that have one
        self._pending = StepOutput(self.load)

    @property
    def card(self) -> ModelCard:
        return self._model.card

    @property
    def dtype(self) -> str:
        return str(self._model.dtype).removeprefix("torch.")

    @property
    def load(self) -> Load:
        scheduler, pool = self._scheduler, self._pool
        return Load(
            scheduler.num_running,
            scheduler.num_waiting,
            pool.num_free,
            pool.num_cached,
            pool.num_used,
            scheduler.num_waiting_tokens,
        )

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to compute or to tell."""
        pending = self._pending
        return self._scheduler.has_work or bool(pending.deltas or pending.finished_ids)

    def submit(self, submit: Submit, grammar: Grammar | None = None) -> None:
        """Queue a request; one that cannot be served is answered with an error delta by the next step.

        `grammar` is that of `submit.params`, compiled; each sequence follows a fork of it."""
        params = submit.params
        now = self._clock()
        request = Request({}, {}, [] if params.num_prompt_logprobs is not None else None)
        leader: Sequence | None = None
        try:
            for index in range(params.n):
                row = RowState(
                    params, index, submit.prompt_ids, self.card.eos_ids, self._model.config.vocab_size
                )
                drafter = Drafter(self._max_draft_tokens) if self._drafts(row) else None
                sequence = Sequence(
                    submit.request_id, index, submit.prompt_ids, params, submit.salt, now, leader, drafter
                )
                self._scheduler.add(sequence)
                leader = leader or sequence
                request.sequences[index] = sequence
                request.rows[index] = row
                if grammar is not None:
                    self._grammars[sequence] = grammar.fork()
        except HeadraceError as error:
            for sequence in request.sequences.values():
                self._grammars.pop(sequence, None)
                self._scheduler.finish(sequence, "error")
            self._refuse(submit.request_id, params.n, error)
            return
        self._requests[submit.request_id] = request

    def cancel(self, request_id: str, index: int | None = None) -> None:
        """Stop a request or one of its sequences and free its blocks; unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is None:
            return
        for key in list(request.sequences) if index is None else [index]:
            sequence = request.sequences.get(key)
            if sequence is not None:
                self._end(request, sequence, "cancelled")

    def snapshot(self) -> list[tuple[bytes, bytes]]:
        """Parent and hash of every reusable block, parents first."""
        return self._pool.snapshot()

    def step(self) -> StepOutput:
        """Advance every scheduled sequence; returns what there is to tell, never raises for one request."""
        started = self._clock()
        output, self._pending = self._pending, StepOutput(self._pending.load)
        preempted = self._scheduler.num_preemptions
        schedule = self._scheduler.schedule(started)
        if schedule.chunks:
            try:
                self._advance(schedule, output)
            except GangLost:  # nor must the others wait for ranks that are no more
                raise
            except Exception as error:  # one poisoned step must not end the others' service
                logger.exception("a step of %d sequences failed", len(schedule.chunks))
                self._fail(schedule, output, error)
        # Endings of this step were noted in the new pending output; they belong to this one.
        output.finished_ids += self._pending.finished_ids
        self._pending.finished_ids = []
        output.events = self._pool.take_events()
        output.num_preemptions = self._scheduler.num_preemptions - preempted
        output.load = self.load
        output.seconds = self._clock() - started
        return output

    def warm_up(self) -> None:
        """Run prompts and decode steps once, so that kernels are built and the step budget is fitted."""
        prompt = [
            1 + i % (self._model.config.vocab_size - 1) for i in range(min(256, self.max_context_tokens - 16))
        ]
        for round_ in range(2):
            for lane in range(2):
                params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
                self.submit(Submit(f"warm-up-{round_}-{lane}", prompt[lane:], params, salt=bytes([round_])))
            while self.has_work:
                self.step()
        self._pool.clear()
        self._pool.take_events()

    @torch.inference_mode()
    def _advance(self, schedule: Schedule, output: StepOutput) -> None:
        started = self._clock()
        chunks = schedule.chunks
        hidden_RE = self._model.decoder.forward([self._chunk(chunk) for chunk in chunks], self._cache)
        sampling = self._take_prompt_logprobs(chunks, hidden_RE)
        samplers = [chunk for chunk in chunks if chunk.samples]
        firsts = {chunk.sequence for chunk in samplers if not chunk.sequence.num_output_tokens}
        rows_RE = hidden_RE if len(sampling) == len(hidden_RE) else hidden_RE[sampling]
        sampled = self._sample(samplers, rows_RE, output)
        self._scheduler.complete(
            schedule, {sequence: [token.id for token in tokens] for sequence, tokens in sampled.items()}
        )
        self._account(schedule, output, self._clock() - started)
        for sequence, tokens in sampled.items():
            output.deltas.append(self._delta(sequence, tokens, sequence in firsts))

    def _sample(
        self, chunks: list[ScheduledChunk], hidden_RE: torch.Tensor, output: StepOutput
    ) -> dict[Sequence, list[_Token]]:
        """The next tokens of each sequence: one, and more as long as they are those of its draft. One whose
        logits are not numbers ends here with an error."""
        if not chunks:
            return {}
        rows = [self._row(chunk.sequence) for chunk in chunks for _ in range(1 + len(chunk.draft))]
        nums_before = [place for chunk in chunks for place in range(1 + len(chunk.draft))]
        logits_BV = self._model.decoder.logits(hidden_RE)
        masks = self._masks(chunks) if self._grammars else None
        drawn = sample(logits_BV, build_plan(rows, nums_before, masks))
        sampled: dict[Sequence, list[_Token]] = {}
        first = 0
        for chunk in chunks:
            tokens = self._accept(chunk, drawn, first)
            first += 1 + len(chunk.draft)
            if not tokens:
                self._end_with_error(chunk.sequence, self._fault(chunk.sequence), output)
                continue
            sampled[chunk.sequence] = tokens
            if chunk.draft and chunk.sequence.drafter is not None:
                chunk.sequence.drafter.observe(len(chunk.draft), len(tokens) - 1)
                output.num_drafted_tokens += len(chunk.draft)
                output.num_accepted_tokens += len(tokens) - 1
        return sampled

    def _accept(self, chunk: ScheduledChunk, drawn: Sampled, first: int) -> list[_Token]:
        """What was drawn for the chunk, from row `first` on: each row saw the draft up to it, so it counts as
        long as the draft is what was drawn. Every token is therefore the one that comes without drafts."""
        row, tokens = self._row(chunk.sequence), list[_Token]()
        grammar = self._grammars.get(chunk.sequence) if self._grammars else None
        if grammar is not None and grammar.fault is not None:
            return tokens
        for place in range(1 + len(chunk.draft)):
            if first + place in drawn.broken_rows:
                break
            token_id = drawn.token_ids[first + place]
            finish = chunk.sequence.finish_reason_for(
                token_id, place, self.card.eos_ids, self.max_context_tokens
            )
            tokens.append(_Token(token_id, drawn.logprobs[first + place], finish))
            row.observe(token_id)
            if grammar is not None:
                grammar.accept(token_id)
            if finish is not None or place == len(chunk.draft) or token_id != chunk.draft[place]:
                break
        return tokens

    def _masks(self, chunks: list[ScheduledChunk]) -> Masks | None:
        """What the grammars allow in the rows of these chunks."""
        rows: list[int] = []
        constrained: list[tuple[Grammar, list[int]]] = []
        first = 0
        for chunk in chunks:
            num_rows = 1 + len(chunk.draft)
            grammar = self._grammars.get(chunk.sequence)
            if grammar is not None:
                rows += range(first, first + num_rows)
                constrained.append((grammar, chunk.draft))
            first += num_rows
        if not rows:
            return None
        bits = new_bits(len(rows), self._model.config.vocab_size)
        first = 0
        for grammar, draft in constrained:
            grammar.fill(bits[first : first + 1 + len(draft)], draft)
            first += 1 + len(draft)
        return Masks(rows, bits)

    def _fault(self, sequence: Sequence) -> HeadraceError:
        """Why no token could be drawn for it."""
        grammar = self._grammars.get(sequence)
        if grammar is not None and grammar.fault is not None:
            return GrammarError(f"the output's grammar could not be followed any further: {grammar.fault}")
        return _fault("the model's logits for it are not finite numbers")

    def _drafts(self, row: RowState) -> bool:
        """Whether drafts are worth their while for it: edits would have to be made token by token."""
        return self._max_draft_tokens > 0 and not row.may_edit

    def _chunk(self, chunk: ScheduledChunk) -> Chunk:
        wants_prompt = self._wants_prompt_logprobs(chunk)
        rows: Rows = "all" if wants_prompt or chunk.draft else "last" if chunk.samples else "none"
        return Chunk(chunk.token_ids, chunk.start, chunk.sequence.block_table, rows)

    def _wants_prompt_logprobs(self, chunk: ScheduledChunk) -> bool:
        """A preempted sequence recomputes its prompt, but its log-probabilities are taken only once."""
        known = self._requests[chunk.sequence.request_id].prompt_logprobs
        return known is not None and chunk.sequence.index == 0 and max(len(known) - 1, 0) <= chunk.start

    def _take_prompt_logprobs(self, chunks: list[ScheduledChunk], hidden_RE: torch.Tensor) -> list[int]:
        """Note the prompt log-probabilities of this step; returns the rows from which to sample."""
        sampling: list[int] = []
        row = 0
        for chunk in chunks:
            if self._wants_prompt_logprobs(chunk):
                self._note_prompt(chunk, hidden_RE[row : row + chunk.num_tokens])
                row += chunk.num_tokens
            elif chunk.samples:
                row += 1 + len(chunk.draft)
            if chunk.samples:
                sampling += range(row - 1 - len(chunk.draft), row)
        return sampling

    def _note_prompt(self, chunk: ScheduledChunk, hidden_TE: torch.Tensor) -> None:
        """The row at position p predicts the prompt token at p + 1; the first token has no predecessor."""
        sequence = chunk.sequence
        known = self._requests[sequence.request_id].prompt_logprobs
        num_top = sequence.params.num_prompt_logprobs
        assert known is not None
        assert num_top is not None
        if chunk.start == 0:
            known.append(Logprob(sequence.token_ids[0], None, []))
        last = min(chunk.start + chunk.num_tokens + 1, sequence.num_prompt_tokens)
        targets = sequence.token_ids[chunk.start + 1 : last]
        for first in range(0, len(targets), LOGITS_SLICE_ROWS):
            part = targets[first : first + LOGITS_SLICE_ROWS]
            logits_TV = self._model.decoder.logits(hidden_TE[first : first + len(part)])
            known += prompt_logprobs(logits_TV, part, num_top)

    def _row(self, sequence: Sequence) -> RowState:
        return self._requests[sequence.request_id].rows[sequence.index]

    def _account(self, schedule: Schedule, output: StepOutput, seconds: float) -> None:
        context_tokens = num_decoded = 0
        for chunk in schedule.chunks:
            if chunk.is_decode:
                output.num_decodes += 1
                num_decoded += chunk.num_tokens
            else:
                output.num_prefill_tokens += chunk.num_tokens
            context_tokens += chunk.context_tokens
        output.num_cached_tokens = schedule.num_cached_tokens
        self._budget.observe(num_decoded, output.num_prefill_tokens, context_tokens, seconds)

    def _delta(self, sequence: Sequence, tokens: list[_Token], is_first: bool) -> Delta:
        delta = Delta(sequence.request_id, sequence.index, [token.id for token in tokens])
        logprobs = [token.logprob for token in tokens if token.logprob is not None]
        delta.logprobs = logprobs or None
        request = self._requests[sequence.request_id]
        if is_first:
            delta.num_cached_tokens = sequence.num_cached_tokens
            delta.queue_s = sequence.queue_s
            if sequence.index == 0:
                delta.prompt_logprobs = request.prompt_logprobs
        delta.finish = tokens[-1].finish
        if delta.finish is not None:
            self._end(request, sequence, delta.finish)
        return delta

    def _end(self, request: Request, sequence: Sequence, reason: str) -> None:
        self._scheduler.finish(sequence, reason)
        self._grammars.pop(sequence, None)
        del request.sequences[sequence.index]
        if not request.sequences:
            del self._requests[sequence.request_id]
            self._pending.finished_ids.append(sequence.request_id)

    def _fail(self, schedule: Schedule, output: StepOutput, error: Exception) -> None:
        """End every request that was in the step; blocks they had published stay out of the cache."""
        output.has_failed = True
        for request_id in {chunk.sequence.request_id for chunk in schedule.chunks}:
            request = self._requests.get(request_id)
            for sequence in list(request.sequences.values()) if request else []:
                self._end_with_error(sequence, _fault(str(error)), output)

    def _end_with_error(self, sequence: Sequence, error: HeadraceError, output: StepOutput) -> None:
        output.deltas.append(_failure(sequence.request_id, sequence.index, error))
        self._end(self._requests[sequence.request_id], sequence, "error")

    def _refuse(self, request_id: str, n: int, error: HeadraceError) -> None:
        self._pending.deltas += [_failure(request_id, index, error) for index in range(n)]
        self._pending.finished_ids.append(request_id)


def _kv_dtype(decoder: Decoder, config: EngineConfig) -> torch.dtype:
    dtype = torch.int8 if config.kv_dtype == "int8" else decoder.kv_dtypes[0]
    if dtype not in decoder.kv_dtypes:
        raise ConfigError(
            "kv.dtype int8 needs the native kernels: a CPU with AVX512-BF16 and VNNI, gcc, kernels: auto, "
            "and weights that compute in bf16; use kv.dtype: auto"
        )
    return dtype


def _fault(reason: str) -> EngineFault:
    return EngineFault(f"the engine failed on this request: {reason}")


def _failure(request_id: str, index: int, error: HeadraceError) -> Delta:
    return Delta(request_id, index, [], finish="error", error=error.message, error_code=error.code)
