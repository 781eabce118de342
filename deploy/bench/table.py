"""A summary as a person reads it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from deploy.bench.summary import SLO_ITL_S, SLO_TTFT_S, Spread, Summary

MAX_ERRORS = 5
LATE_MS = 50.0


def show(summary: Summary, heading: str, console: Console) -> None:
    """Latencies as a table, then the sums, then what went wrong."""
    console.print(heading, style="bold", markup=False, highlight=False, soft_wrap=True)
    table = Table("ms", "mean", "p50", "p90", "p99", "max")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {
        "time to first token": summary.ttft_ms,
        "inter-token latency": summary.itl_ms,
        "mean ITL per request": summary.mean_itl_ms,
        "end to end": summary.e2e_ms,
    }
    for name, spread in rows.items():
        table.add_row(name, *_cells(spread))
    console.print(table)
    for name, value in _sums(summary).items():
        console.print(f"  {name:<22}{value}", highlight=False)
    _show_errors(summary, console)


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["–"] * 5
    return [f"{value:,.1f}" for value in (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)]


def _sums(summary: Summary) -> dict[str, str]:
    asked = f"{summary.num_answered:,} answered in {summary.wall_s:.1f} s"
    asked += f", {summary.num_failed:,} failed" if summary.num_failed else ""
    asked += f", {summary.num_given_up:,} given up" if summary.num_given_up else ""
    cached = f", {summary.num_cached_tokens:,} of them cached" if summary.num_cached_tokens else ""
    return {
        "requests": asked,
        "output tokens/s": f"{summary.output_tokens_per_s:,.1f}",
        "total tokens/s": f"{summary.total_tokens_per_s:,.1f}",
        "requests/s": f"{summary.requests_per_s:,.2f}",
        "goodput": f"{summary.goodput_per_s:,.2f} requests/s, {summary.goodput_share:.0%} "
        f"(TTFT ≤ {SLO_TTFT_S * 1e3:.0f} ms, mean ITL ≤ {SLO_ITL_S * 1e3:.0f} ms)",
        "input tokens": f"{summary.num_input_tokens:,}{cached}",
        "output tokens": f"{summary.num_output_tokens:,}",
    }


def _show_errors(summary: Summary, console: Console) -> None:
    if summary.late_ms > LATE_MS:
        console.print(
            f"  this client was up to {summary.late_ms:,.0f} ms late in sending; "
            "its machine is too busy for this load",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    for message, count in list(summary.errors.items())[:MAX_ERRORS]:
        console.print(f"  {count:,} × {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    if len(summary.errors) > MAX_ERRORS:
        console.print(f"  and {len(summary.errors) - MAX_ERRORS} other errors", style="red", highlight=False)
