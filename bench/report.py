"""What a bench says at its end: medians of both sides, their ratio, the bars, and the exit status.

Machines drift and have neighbours, so absolute figures of one run mean little; both sides are measured in
turns within one run and only what compares them is judged.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Values = Sequence[float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure on both sides, a value per round."""

    name: str
    unit: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Ours to theirs, of medians."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def difference(self) -> float:
        return statistics.median(self.ours) - statistics.median(self.theirs)


@dataclass(frozen=True, slots=True)
class Bar:
    """What has to hold; with `--check` a bar that is missed fails the run."""

    name: str
    value: float
    relation: str  # "≥", "≤" or "<"
    limit: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        if self.relation == "<":
            return self.value < self.limit
        return self.value >= self.limit if self.relation == "≥" else self.value <= self.limit

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.2f}{self.unit}, wanted {self.relation} {self.limit:g}{self.unit}"


class Report:
    """`sides` are the names of ours and theirs."""

    def __init__(self, title: str, sides: tuple[str, str]) -> None:
        self._title = title
        self._sides = sides
        self._comparisons: list[Comparison] = []
        self._bars: list[Bar] = []
        self._facts: dict[str, Any] = {}

    def compare(self, name: str, unit: str, ours: Values, theirs: Values) -> Comparison:
        comparison = Comparison(name, unit, tuple(ours), tuple(theirs))
        self._comparisons.append(comparison)
        return comparison

    def bar(self, name: str, value: float, relation: str, limit: float, unit: str = "") -> None:
        self._bars.append(Bar(name, value, relation, limit, unit))

    def fact(self, name: str, value: Any) -> None:
        """Something to know when reading the figures."""
        self._facts[name] = value

    def finish(self, arguments: argparse.Namespace, part: str | None = None) -> int:
        """Print everything, write `--json`; the exit status is 1 if a bar was missed and `--check` given.

        A bench of several reports names each `part`; they share the file."""
        console = Console()
        self._print(console)
        if arguments.json is not None:
            written = self._as_json()
            if part is not None:
                parts = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
                written = {**parts, part: written}
            arguments.json.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
        missed = [bar for bar in self._bars if not bar.is_met]
        if not arguments.check:
            return 0
        for bar in missed:
            print(f"missed: {bar}", file=sys.stderr)
        return 1 if missed else 0

    def _print(self, console: Console) -> None:
        ours, theirs = self._sides
        console.print(self._title, style="bold", highlight=False)
        table = Table("median of rounds", f"{ours}", f"{theirs}", "ratio", "difference")
        for column in table.columns[1:]:
            column.justify = "right"
        for item in self._comparisons:
            table.add_row(
                f"{item.name}, {item.unit}",
                _spread(item.ours),
                _spread(item.theirs),
                f"{item.ratio:.2f}",
                f"{item.difference:+.1f}",
            )
        console.print(table)
        for name, value in self._facts.items():
            console.print(f"  {name}: {value}", highlight=False, markup=False)
        for bar in self._bars:
            style = "green" if bar.is_met else "red"
            console.print(f"  {'met   ' if bar.is_met else 'missed'}  {bar}", style=style, highlight=False)

    def _as_json(self) -> dict[str, Any]:
        return {
            "title": self._title,
            "sides": self._sides,
            "comparisons": [
                {**asdict(item), "ratio": item.ratio, "difference": item.difference}
                for item in self._comparisons
            ],
            "bars": [{**asdict(bar), "is_met": bar.is_met} for bar in self._bars],
            "facts": self._facts,
        }


def _spread(values: Values) -> str:
    """The median, and between what the rounds lay."""
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def arguments_parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """What every bench takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to a file")
    parser.add_argument("--check", action="store_true", help="exit with 1, naming each bar that was missed")
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds per side (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed sends the same prompts")
    parser.add_argument(
        "--quiet-wait",
        type=float,
        default=20.0,
        metavar="S",
        help="wait so long before each measurement for others to leave the cores alone (default %(default)s)",
    )
    return parser
