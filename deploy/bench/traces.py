"""Trace files: when requests came, how long they were, which blocks of text they shared.

The format is told by the file's own header or keys, not by its name:

    Azure LLM inference trace   CSV     ms, context_tokens, generated_tokens
    ServeGen                    CSV     ms, client, input_tokens, output_tokens
    Vidur lengths               CSV     num_prefill_tokens, num_decode_tokens (no times)
    Mooncake                    JSONL   timestamp, input_length, output_length, hash_ids

Traces hold no text. Theirs is made from the seed; where a trace has block hashes, equal ones get equal text.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from workers.errors import ConfigError

FORMATS = (
    "a CSV with ms,context_tokens,generated_tokens (Azure), ms,client,input_tokens,output_tokens (ServeGen) "
    "or num_prefill_tokens,num_decode_tokens (Vidur), or JSON lines with timestamp, input_length, "
    "output_length, hash_ids (Mooncake)"
)
MAX_BLOCK_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One request. `block_ids` are empty where the trace does not tell what prompts share."""

    at_s: float | None
    num_input_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Entries in order of time. `block_tokens` is the length of a block named by `block_ids`."""

    name: str
    entries: tuple[TraceEntry, ...]
    block_tokens: int | None = None

    @property
    def has_times(self) -> bool:
        return self.entries[0].at_s is not None


# What marks a CSV's format: the columns of the time in ms, the input and the output tokens.
_COLUMNS: tuple[tuple[str | None, str, str], ...] = (
    ("ms", "context_tokens", "generated_tokens"),
    ("ms", "input_tokens", "output_tokens"),
    (None, "num_prefill_tokens", "num_decode_tokens"),
)
_MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")


def read_trace(path: Path) -> Trace:
    """The trace in a file. Raises ConfigError that names the line that is wrong."""
    lines = _lines(path)
    trace = _from_json_lines(path, lines) if lines[0].lstrip().startswith("{") else _from_csv(path, lines)
    times = [entry.at_s for entry in trace.entries if entry.at_s is not None]
    if any(later < earlier for earlier, later in pairwise(times)):
        raise ConfigError(f"{path} is not in order of time; sort it by its time column")
    return trace


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise ConfigError(f"{path} is empty; a trace is {FORMATS}")
    return lines


def _from_csv(path: Path, lines: list[str]) -> Trace:
    rows = csv.DictReader(lines)
    header = rows.fieldnames or []
    columns = next((names for names in _COLUMNS if all(name in header for name in names if name)), None)
    if columns is None:
        raise ConfigError(
            f"{path} is no trace that is known: its first line is {lines[0][:80]!r}; known are {FORMATS}"
        )
    time_column, input_column, output_column = columns
    entries = tuple(
        _entry(
            path,
            number,
            None if time_column is None else row[time_column],
            row[input_column],
            row[output_column],
        )
        for number, row in enumerate(rows, start=2)
    )
    if not entries:
        raise ConfigError(f"{path} has a header but no requests")
    return Trace(path.name, entries)


def _from_json_lines(path: Path, lines: list[str]) -> Trace:
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            row: Any = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict) or any(key not in row for key in _MOONCAKE):
            keys = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            remedy = "; prompts without lengths are given with --text" if "turns" in row else ""
            raise ConfigError(
                f"{path}, line {number} is no trace entry: it has {keys}, "
                f"wanted are {', '.join(_MOONCAKE)}{remedy}"
            )
        entries.append(
            _entry(path, number, row["timestamp"], row["input_length"], row["output_length"], row["hash_ids"])
        )
    return Trace(path.name, tuple(entries), _block_tokens(path, entries))


def _entry(
    path: Path, number: int, ms: Any, num_input: Any, num_output: Any, block_ids: Any = ()
) -> TraceEntry:
    try:
        entry = TraceEntry(
            None if ms is None else float(ms) / 1e3,
            int(num_input),
            int(num_output),
            tuple(int(block_id) for block_id in block_ids),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}, line {number} is wrong: {error}") from error
    if entry.num_input_tokens < 1 or entry.num_output_tokens < 1:
        raise ConfigError(
            f"{path}, line {number} has {entry.num_input_tokens} input and {entry.num_output_tokens} output "
            "tokens; both must be at least 1"
        )
    return entry


def _block_tokens(path: Path, entries: list[TraceEntry]) -> int:
    """The power of two that explains how many blocks every entry has."""
    size = 1
    while size <= MAX_BLOCK_TOKENS:
        if all(len(entry.block_ids) == -(-entry.num_input_tokens // size) for entry in entries):
            return size
        size *= 2
    raise ConfigError(
        f"{path}: no block size explains how many hash_ids its entries have for their input_length"
    )
