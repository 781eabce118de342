"""`headrace bench`: prepare the endpoint, measure, show. Ctrl-C ends the measuring, not the showing."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy.bench.arrivals import Arrivals
from deploy.bench.client import Client, Target
from deploy.bench.options import BenchOptions
from deploy.bench.preparation import prepare, target_of
from deploy.bench.progress import RunProgress
from deploy.bench.record import Record
from deploy.bench.request import Workload
from deploy.bench.run import Outcome, Run
from deploy.bench.summary import Summary, summarise
from deploy.bench.table import show
from workers.errors import ConfigError

ALL_FAILED, INTERRUPTED = 1, 130


def bench(
    options: BenchOptions, api_key: str | None, json_path: Path | None, console: Console, log: Console
) -> int:
    """Measure and show; returns the exit status. What is wrong beforehand raises ConfigError or Unusable."""
    options.check()
    _check_writable(json_path)
    return asyncio.run(_Bench(options, api_key, json_path, console, log).run())


class _Bench:
    def __init__(
        self,
        options: BenchOptions,
        api_key: str | None,
        json_path: Path | None,
        console: Console,
        log: Console,
    ) -> None:
        self._options = options
        self._source = options.source()
        self._api_key = api_key
        self._json_path = json_path
        self._console = console
        self._log = log

    async def run(self) -> int:
        options = self._options
        keeps_lengths = options.ignores_eos if options.ignores_eos is not None else self._source.keeps_lengths
        asked = Target(
            options.url, options.model or "", options.api, keeps_lengths, self._api_key, options.timeout_s
        )
        target = await target_of(asked)
        async with Client(target) as client:
            with self._log.status("warming up"):
                scale = await prepare(client, options.seed, options.warmup)
            workload = self._source.workload(scale)
            arrivals = options.arrivals(workload)
            outcome, was_stopped = await self._measure(client, workload, arrivals)
        summary = summarise(outcome)
        show(
            summary, f"{target.model} at {target.url}: {workload.name}, {arrivals.description}", self._console
        )
        self._write(summary, outcome.records, target, workload, arrivals)
        if was_stopped:
            return INTERRUPTED
        return ALL_FAILED if outcome.records and not summary.num_answered else 0

    async def _measure(self, client: Client, workload: Workload, arrivals: Arrivals) -> tuple[Outcome, bool]:
        num_requests, duration_s = self._options.num_requests(workload), self._options.duration_s
        with RunProgress(self._log, num_requests if duration_s is None else None, duration_s) as progress:
            run = Run(client, arrivals, num_requests, duration_s, progress.add)
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGINT, run.stop)
            try:
                outcome = await run.measure(workload)
            finally:
                loop.remove_signal_handler(signal.SIGINT)
        return outcome, run.is_stopped

    def _write(
        self, summary: Summary, records: list[Record], target: Target, workload: Workload, arrivals: Arrivals
    ) -> None:
        if self._json_path is None:
            return
        written: dict[str, Any] = {
            "url": target.url,
            "model": target.model,
            "workload": workload.name,
            "arrivals": arrivals.description,
            "seed": self._options.seed,
            "summary": summary.as_json(),
            "requests": [_as_json(record) for record in records],
        }
        text = json.dumps(written, indent=1) + "\n"
        if str(self._json_path) == "-":
            sys.stdout.write(text)
        else:
            self._json_path.write_text(text)


def _as_json(record: Record) -> dict[str, Any]:
    return {
        "started_s": record.started_s,
        "ttft_s": record.ttft_s,
        "e2e_s": record.e2e_s,
        "mean_itl_s": record.mean_itl_s,
        "input_tokens": record.num_input_tokens,
        "cached_tokens": record.num_cached_tokens,
        "output_tokens": record.num_output_tokens,
        "error": record.error,
    }


def _check_writable(path: Path | None) -> None:
    """Better said now than after an hour of measuring."""
    if path is None or str(path) == "-":
        return
    try:
        path.touch()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
