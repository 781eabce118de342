"""What `headrace bench` was asked for, checked as a whole before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from deploy.bench.arrivals import Arrivals, ClosedLoop, OpenLoop, Spacing, TraceTimes
from deploy.bench.client import Api
from deploy.bench.corpus import read_conversations
from deploy.bench.request import Workload
from deploy.bench.traces import read_trace
from deploy.bench.words import TextScale
from deploy.bench.workload import (
    SHAREGPT_INPUT_TOKENS,
    SHAREGPT_OUTPUT_TOKENS,
    Corpus,
    Replay,
    Synthetic,
    TextKind,
)
from workers.errors import ConfigError

DEFAULT_STREAMS = 8
DEFAULT_REQUESTS = 64
DEFAULT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`None` means that the option was not given."""

    url: str
    model: str | None = None
    api: Api = "chat"
    concurrency: int | None = None
    rate: float | None = None
    spacing: Spacing = "poisson"
    requests: int | None = None
    duration_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    text: str | None = None
    trace: Path | None = None
    speedup: float | None = None
    ignores_eos: bool | None = None
    warmup: int = 4
    timeout_s: float = 600.0
    seed: int = 0

    def check(self) -> None:
        """Raises ConfigError for options that exclude each other or need one that is missing."""
        if self.concurrency is not None and self.rate is not None:
            raise ConfigError(
                f"--concurrency {self.concurrency} and --rate {self.rate:g} exclude each other: "
                "a closed loop has streams, an open one has a rate; give one of them"
            )
        if self.trace is not None and self.text is not None:
            raise ConfigError(
                "--trace and --text exclude each other: a trace's text is made from its lengths"
            )
        if self.speedup is not None and (self.trace is None or self.has_own_arrivals):
            raise ConfigError(
                "--speedup is for the times of a --trace; leave out --concurrency and --rate with it"
            )

    @property
    def has_own_arrivals(self) -> bool:
        return self.concurrency is not None or self.rate is not None

    def source(self) -> WorkloadSource:
        """The workload's files, read. Raises ConfigError."""
        return WorkloadSource(self)

    def arrivals(self, workload: Workload) -> Arrivals:
        """How the workload is to be sent. Raises ConfigError if a trace without times is to be followed."""
        if self.rate is not None:
            return OpenLoop(self.rate, self.spacing, self.seed)
        if workload.has_times and self.concurrency is None:
            return TraceTimes(self.speedup or 1.0)
        if self.speedup is not None:
            raise ConfigError(
                f"the {workload.name} has no times to speed up; give --rate or --concurrency instead"
            )
        return ClosedLoop(self.concurrency or DEFAULT_STREAMS)

    def num_requests(self, workload: Workload) -> int | None:
        """The most to send; None leaves the end to the duration."""
        if self.requests is not None:
            return self.requests
        if workload.num_requests is not None or self.duration_s is not None:
            return workload.num_requests
        return len(workload) if isinstance(workload, Corpus) else DEFAULT_REQUESTS


class WorkloadSource:
    """Everything about a workload but how the server counts tokens."""

    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        text = options.text
        self._trace = read_trace(options.trace) if options.trace is not None else None
        is_file = text is not None and text not in get_args(TextKind)
        self._conversations = read_conversations(Path(text)) if is_file and text is not None else None

    @property
    def keeps_lengths(self) -> bool:
        """Whether outputs should be as long as was asked for; people's prompts are answered as they end."""
        return self._conversations is None

    def workload(self, scale: TextScale) -> Workload:
        """The requests, sized for a server that counts as `scale` says."""
        options = self._options
        if self._trace is not None:
            return Replay(self._trace, scale, options.seed, options.input_tokens, options.output_tokens)
        if self._conversations is not None:
            name = Path(options.text or "").name
            return Corpus(name, self._conversations, options.output_tokens or 2 * DEFAULT_TOKENS)
        if options.text == "sharegpt":
            num_input = options.input_tokens or SHAREGPT_INPUT_TOKENS
            num_output = options.output_tokens or SHAREGPT_OUTPUT_TOKENS
            return Synthetic("sharegpt", num_input, num_output, scale, options.seed)
        num_input, num_output = (
            options.input_tokens or DEFAULT_TOKENS,
            options.output_tokens or DEFAULT_TOKENS,
        )
        return Synthetic("random", num_input, num_output, scale, options.seed)
