"""The progress bar of a run: how far it is, and what it has measured so far.

It is redrawn twice a second at most, and not at all where there is no terminal, because the server may share
this machine.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from deploy.bench.record import Record

REFRESHES_PER_SECOND = 2


class RunProgress:
    """`total` conversations, or `duration_s` seconds if the number is not known."""

    def __init__(self, console: Console, total: int | None, duration_s: float | None) -> None:
        self._by_time = total is None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[seen]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(
            "measuring", total=duration_s if total is None else total, seen=""
        )
        self._started_s = time.perf_counter()
        self._num_answered = self._num_failed = self._num_tokens = 0

    def __enter__(self) -> RunProgress:
        self._progress.start()
        self._started_s = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def add(self, records: list[Record]) -> None:
        """One conversation is over."""
        elapsed_s = time.perf_counter() - self._started_s
        self._num_answered += sum(record.error is None for record in records)
        self._num_failed += sum(record.error is not None for record in records)
        self._num_tokens += sum(record.num_output_tokens for record in records)
        failed = f", [red]{self._num_failed} failed[/]" if self._num_failed else ""
        seen = (
            f"{self._num_answered} answered{failed}, {self._num_tokens / max(elapsed_s, 1e-9):,.0f} tokens/s"
        )
        if self._by_time:
            self._progress.update(self._task, completed=elapsed_s, seen=seen)
        else:
            self._progress.update(self._task, advance=1, seen=seen)
