"""A server under test: a process tree with an OpenAI endpoint, awake only while it is measured.

Asleep means stopped by SIGSTOP: an idle cluster still polls and beats, and would take that from the side that
is measured. After waking it has to answer again before it counts as awake.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import machine

STOP_S = 20.0
WAKE_S = 60.0
POLL_S = 0.1
IDLE_S = 5.0
CALM_S = 3.0  # without a failed answer; by then timers that ran out during the sleep have had their say


class ServerFailed(Exception):
    """The server ended, or did not answer in time; the message has the end of its log."""


def end_cleanly_on_sigterm() -> None:
    """SIGTERM ends the bench by SystemExit, so that the servers it started, asleep or not, end with it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Started at once; `ready_path` answers 200 when it can serve."""

    def __init__(
        self,
        name: str,
        command: list[str],
        port: int,
        ready_path: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self._ready_path = ready_path
        self._log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C ends the bench, which then ends the server
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> None:
        """Raises ServerFailed."""
        deadline_s = time.monotonic() + timeout_s
        while not self._answers():
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.name} ended with {self._process.returncode}:\n{self._log_end()}")
            if time.monotonic() > deadline_s:
                raise ServerFailed(f"{self.name} did not serve within {timeout_s:g} s:\n{self._log_end()}")
            time.sleep(POLL_S)

    def idle_cores(self) -> float:
        """What the whole tree uses while nothing is asked of it."""
        pids = machine.tree(self.pid)
        before_s, started_s = machine.cpu_s(pids), time.monotonic()
        time.sleep(IDLE_S)
        return (machine.cpu_s(pids) - before_s) / (time.monotonic() - started_s)

    def sleep(self) -> None:
        machine.pause(self.pid)

    def wake(self) -> None:
        """Return when it has answered without fail for a while. Raises ServerFailed."""
        machine.resume(self.pid)
        deadline_s = time.monotonic() + WAKE_S
        calm_since_s = time.monotonic()
        while time.monotonic() - calm_since_s < CALM_S:
            if not self._answers():
                calm_since_s = time.monotonic()
            if time.monotonic() > deadline_s:
                raise ServerFailed(f"{self.name} did not wake up within {WAKE_S:g} s:\n{self._log_end()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ctrl-C, then the hard way for whatever is left of the tree."""
        machine.resume(self.pid)
        pids = machine.tree(self.pid)
        self._process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + self._ready_path, timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _log_end(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])
