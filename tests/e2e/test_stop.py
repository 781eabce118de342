"""Ctrl-C leaves nothing behind, and a start that fails says why and leaves nothing either."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, descendants, is_alive, wait_for


def test_one_replica_sees_a_client_leave_and_ctrl_c_stops_every_process_within_10_s(tmp_path: Path) -> None:
    """The default cluster: one replica, on the endpoint's own port."""
    cluster = Cluster.start(None, tmp_path / "log.txt")
    try:
        for stream in (False, True):
            assert_a_leaving_client_is_noticed(cluster, stream)
        pids = descendants(cluster.process.pid)
        assert len(pids) >= 4  # Ray's own processes, a worker, a router
    finally:
        started = time.monotonic()
        survivors = cluster.stop(timeout_s=10)
    assert survivors == set()
    assert time.monotonic() - started < 10
    assert not any(is_alive(pid) for pid in pids)
    assert cluster.process.returncode == 0


def assert_a_leaving_client_is_noticed(cluster: Cluster, stream: bool) -> None:
    """Before the first byte, with head and body sent apart, as most clients do."""
    connection = http.client.HTTPConnection(cluster.url.removeprefix("http://"), timeout=30)
    fields = {"model": "smollm2-135m", "prompt": "water " * 7000, "max_tokens": 900, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(fields), {"content-type": "application/json"})
    wait_for(lambda: not cluster.is_idle(), 10, "the prompt to be worked on")
    connection.close()
    cluster.wait_idle()


@pytest.mark.parametrize("stage", ["starting Ray", "Ray is up", "router is up"])
def test_ctrl_c_while_it_starts_leaves_nothing_behind(tmp_path: Path, stage: str) -> None:
    cluster = Cluster.launch(None, tmp_path / "log.txt")
    wait_for(lambda: stage in cluster.log.read_text(), 60, stage)
    cluster.seen_pids |= descendants(cluster.process.pid)
    assert cluster.stop(timeout_s=10) == set(), cluster.log.read_text()
    assert cluster.process.returncode == 0
    assert "Traceback" not in cluster.log.read_text()


def test_a_start_that_fails_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    spec = tmp_path / "cluster.yaml"
    spec.write_text("models:\n  - {name: m, source: /nowhere/model.gguf, pools: [{role: unified}]}\n")
    run = subprocess.run(
        [sys.executable, "-m", "deploy.cli", "serve", str(spec)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 2
    assert "/nowhere/model.gguf" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_worker_that_refuses_its_configuration_ends_the_start_with_one_line(tmp_path: Path) -> None:
    spec = tmp_path / "cluster.yaml"
    spec.write_text("models: [{name: m, source: 'builtin:smollm2-135m', pools: [{kv: {memory: 64KiB}}]}]\n")
    cluster = Cluster.launch(spec, tmp_path / "log.txt")
    wait_for(lambda: cluster.process.poll() is not None, 90, "the start to fail")
    assert cluster.process.returncode == 2
    log = cluster.log.read_text()
    assert "kv.memory of 65536 bytes holds 0 blocks of 16 tokens" in log
    assert "Traceback" not in log
