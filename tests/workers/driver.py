"""Drives a real engine without a cluster: submits requests, steps to the end, collects what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from workers.config import EngineConfig
from workers.engine import Engine
from workers.load.model import LoadedModel
from workers.sampling.grammar import LlguidanceCompiler
from workers.sampling.params import SamplingParams
from workers.wire import Delta, Logprob, Submit


@dataclass
class Output:
    """Everything that came out of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_logprobs: list[Logprob] | None = None
    num_cached_tokens: int | None = None
    finish: str | None = None
    error: str | None = None

    def add(self, delta: Delta) -> None:
        assert self.finish is None, f"a delta after the finish: {delta}"
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or []
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        if delta.num_cached_tokens is not None:
            self.num_cached_tokens = delta.num_cached_tokens
        self.finish, self.error = delta.finish, delta.error


class Driver:
    """One engine and the outputs of its requests by (request id, index)."""

    def __init__(self, model: LoadedModel, **config: object) -> None:
        defaults: dict[str, object] = {"kv_memory_bytes": 64 << 20, "threads": 2}
        self.engine = Engine(model, EngineConfig(**{**defaults, **config}), hash_key=b"test")  # type: ignore[arg-type]
        self.outputs: dict[tuple[str, int], Output] = {}
        self.num_preemptions = 0
        self.num_accepted = 0  # drafted tokens

    @cached_property
    def _compiler(self) -> LlguidanceCompiler:
        card = self.engine.card
        return LlguidanceCompiler(card.tokenizer_json, card.vocab_size, card.eos_ids)

    def submit(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams, salt: bytes = b""
    ) -> None:
        for index in range(params.n):
            self.outputs[request_id, index] = Output()
        grammar = None if params.grammar is None else self._compiler.compile(params.grammar)
        self.engine.submit(Submit(request_id, prompt_ids, params, salt), grammar)

    def step(self) -> None:
        output = self.engine.step()
        self.num_preemptions += output.num_preemptions
        self.num_accepted += output.num_accepted_tokens
        for delta in output.deltas:
            self.outputs[delta.request_id, delta.index].add(delta)

    def run(self, until: Callable[[], bool] = lambda: False, limit: int = 5000) -> None:
        """Step until `until()` holds or nothing is left to do."""
        for _ in range(limit):
            if until() or not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"the engine still has work after {limit} steps")

    def generate(self, prompt_ids: list[int], params: SamplingParams, request_id: str = "r") -> Output:
        self.submit(request_id, prompt_ids, params)
        self.run()
        return self.outputs[request_id, 0]
