"""`headrace serve`: from a configuration to an endpoint that answers, and back to nothing left running."""

from __future__ import annotations

import errno
import json
import signal
import socket
import threading
import time
from pathlib import Path
from types import FrameType

from rich.console import Console

from cluster.spec import ClusterSpec, load_spec, parse_spec
from deploy.local import LocalCluster
from workers.errors import ConfigError
from workers.load.sources import resolve

DEFAULT_SPEC = Path(__file__).with_name("default.yaml")


class _Stopped(BaseException):
    """Ctrl-C or SIGTERM; raised wherever the main thread happens to be."""


def serve(spec_path: Path | None, host: str | None, port: int | None, console: Console) -> None:
    """Serve until Ctrl-C. Raises ConfigError if it cannot."""
    spec = _spec(spec_path, host, port)
    for model in spec.models:
        if not model.source.startswith("hf:"):  # fetching is the workers' work
            resolve(model.source)
    _check_port(spec.http.host, spec.http.port)
    started_s = time.monotonic()

    def report(stage: str) -> None:
        console.print(f"[dim]{time.monotonic() - started_s:5.1f} s[/]  {stage}", highlight=False)

    cluster = LocalCluster(spec, report)
    signals = _Signals()
    try:
        report("starting Ray")
        cluster.start()
        signals.install()  # Ray has put a handler of its own for SIGTERM
        _announce(spec, cluster.url, console)
        while True:
            time.sleep(3600)
    except _Stopped:
        console.print("stopping", highlight=False)
    finally:
        signals.ignore()
        stopping_s = time.monotonic()
        cluster.stop()
        console.print(f"stopped in {time.monotonic() - stopping_s:.1f} s", highlight=False)


class _Signals:
    """The first SIGINT or SIGTERM interrupts the main thread, all others are ignored while it cleans up."""

    def __init__(self) -> None:
        self.install()

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def ignore(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.ignore()
        raise _Stopped


def default_spec() -> ClusterSpec:
    """What is served when no configuration is given."""
    return parse_spec(DEFAULT_SPEC.read_text(), "the default configuration")


def _spec(path: Path | None, host: str | None, port: int | None) -> ClusterSpec:
    spec = default_spec() if path is None else load_spec(path)
    given = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    return spec.model_copy(update={"http": spec.http.model_copy(update=given)})


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise ConfigError(f"port {port} of {host} {reason}; choose another with --port") from error


def _announce(spec: ClusterSpec, url: str, console: Console) -> None:
    body = {
        "model": spec.models[0].name,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    names = ", ".join(model.name for model in spec.models)
    console.print(
        f"\n[bold green]ready[/]  {names} on [bold]{url}/v1[/]   (Ctrl-C stops everything)\n", highlight=False
    )
    command = f"curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{json.dumps(body)}'"
    console.print(command, highlight=False, markup=False, soft_wrap=True)
