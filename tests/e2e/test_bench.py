"""`headrace bench` against the cluster: what it counts is what was asked for."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.cluster import Cluster


def bench(cluster: Cluster, path: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "deploy.cli", "bench", "--url", cluster.url, "--json", str(path)]
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "TTFT" in run.stdout
    written: dict[str, Any] = json.loads(path.read_text())
    return written


def test_a_closed_loop_counts_every_token(cluster: Cluster, tmp_path: Path) -> None:
    arguments = (
        "--concurrency",
        "2",
        "--requests",
        "6",
        "--input-tokens",
        "40",
        "--output-tokens",
        "12",
        "--warmup",
        "1",
    )
    written = bench(cluster, tmp_path / "out.json", *arguments)
    summary = written["summary"]
    assert (summary["num_answered"], summary["num_failed"], summary["num_output_tokens"]) == (6, 0, 72)
    assert all(record["output_tokens"] == 12 for record in written["requests"])
    assert all(0 < record["ttft_s"] < record["e2e_s"] for record in written["requests"])


def test_an_open_loop_replays_a_trace_at_its_own_times(cluster: Cluster, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("ms,context_tokens,generated_tokens\n0,30,5\n400,20,7\n800,25,3\n")
    written = bench(cluster, tmp_path / "out.json", "--trace", str(trace), "--speedup", "2", "--warmup", "0")
    records = sorted(written["requests"], key=lambda record: record["started_s"])
    assert [record["output_tokens"] for record in records] == [5, 7, 3]
    gaps = [later["started_s"] - earlier["started_s"] for earlier, later in itertools.pairwise(records)]
    assert all(0.15 < gap < 0.6 for gap in gaps), gaps


def test_an_endpoint_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.cli", "bench", "--url", "http://127.0.0.1:9"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "127.0.0.1:9" in run.stderr
    assert "Traceback" not in run.stderr
