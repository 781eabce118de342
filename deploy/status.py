"""`headrace status`: what the workers of a running cluster are doing, asked over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from rich.console import Console
from rich.table import Table

from workers.errors import HeadraceError

TIMEOUT_S = 10.0


class Unreachable(HeadraceError):
    """There is no cluster at the URL, or it does not answer."""


def fetch(url: str) -> dict[str, Any]:
    """What `/status` says. Raises Unreachable."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/status", timeout=TIMEOUT_S) as response:
            status: dict[str, Any] = json.load(response)
            return status
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise Unreachable(f"no answer from {url}: {error}; is `headrace serve` running there?") from error


def show(status: dict[str, Any], console: Console) -> None:
    """A table of the workers."""
    table = Table("worker", "model", "state", "pid", "epoch", "losses", "last loss")
    for worker in status["workers"]:
        table.add_row(
            worker["worker_id"],
            worker["model"],
            worker["state"],
            str(worker["pid"] or "–"),
            str(worker["epoch"]),
            str(worker["losses"]),
            worker["reason"] or "–",
        )
    console.print(table)
