"""Starts `headrace serve` as a child process, watches it, and stops it as Ctrl-C would."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

START_S = 120.0


def wait_for(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Poll until `condition()` is truthy; returns its value."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> set[int]:
    """Every live process below `pid`."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: set[int] = set()
    front = [pid]
    while front:
        front = [child for parent in front for child in children.get(parent, []) if child not in found]
        found.update(front)
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def total(samples: list[Sample], name: str, **labels: str) -> float:
    """The sum over the samples called `name` whose labels include `labels`."""
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


class Cluster:
    """A served cluster and what can be asked of it from outside."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.seen_pids: set[int] = set()

    @classmethod
    def launch(cls, spec: Path | None, log: Path) -> Cluster:
        """Run the command and return at once."""
        port = free_port()
        command = [sys.executable, "-m", "deploy.cli", "serve", *([str(spec)] if spec else [])]
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [*command, "--port", str(port)],
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        return cls(process, f"http://127.0.0.1:{port}", log)

    @classmethod
    def start(cls, spec: Path | None, log: Path) -> Cluster:
        """Run the command and return when it says that it is ready."""
        cluster = cls.launch(spec, log)
        try:
            wait_for(cluster.has_started, START_S, "the ready line of headrace serve")
        except AssertionError as error:
            cluster.stop()
            raise AssertionError(f"{error}\n{log.read_text()}") from None
        return cluster

    def has_started(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"headrace serve ended with {self.process.returncode}")
        return self.url in self.log.read_text() and "curl" in self.log.read_text()

    def stop(self, timeout_s: float = 10.0) -> set[int]:
        """Ctrl-C; returns the pids that outlived it, after killing them."""
        pids = descendants(self.process.pid) | self.seen_pids
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)  # a terminal sends it to the whole group
        deadline = time.monotonic() + timeout_s
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pids.add(self.process.pid)
        while time.monotonic() < deadline and any(map(is_alive, pids)):
            time.sleep(0.05)
        survivors = {pid for pid in pids if is_alive(pid)}
        for pid in survivors:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(5)
        return survivors

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return response.read().decode()

    def status(self) -> dict[str, Any]:
        return json.loads(self.get("/status"))  # type: ignore[no-any-return]

    def samples(self) -> list[Sample]:
        """All samples of one scrape."""
        families = text_string_to_metric_families(self.get("/metrics"))
        return [sample for family in families for sample in family.samples]

    def metrics(self, name: str, **labels: str) -> float:
        """The sum over all samples called `name` whose labels include `labels`."""
        return total(self.samples(), name, **labels)

    def is_idle(self) -> bool:
        """Whether the engines' own counters say that nothing runs, waits or holds a block."""
        samples = self.samples()
        return (
            total(samples, "headrace_worker_running_sequences") == 0
            and total(samples, "headrace_worker_waiting_sequences") == 0
            and total(samples, "headrace_worker_kv_blocks", state="used") == 0
        )

    def wait_idle(self, timeout_s: float = 5.0) -> None:
        wait_for(self.is_idle, timeout_s, "every block free again")
