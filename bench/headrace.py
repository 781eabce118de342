"""The Headrace side of a comparison: one worker behind one router, started as a user would start it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from servers import Server, free_port

from cluster.spec import ClusterSpec, parse_spec
from workers.config import EngineConfig

MODEL = "smollm2-135m"
START_S = 300.0


def spec_of(source: str) -> ClusterSpec:
    """One worker with all cores, everything else by default."""
    text = f"models: [{{name: {MODEL}, source: {source!r}}}]"
    return parse_spec(text, "the bench's configuration")


def engine_config(spec: ClusterSpec) -> EngineConfig:
    """What the one worker of the cluster gets."""
    [worker] = spec.worker_configs(b"", os.cpu_count() or 1)
    return worker.engine


def start_headrace(source: str, folder: Path) -> Server:
    """Serving, when this returns. Raises ServerFailed."""
    import yaml

    file = folder / "headrace.yaml"
    file.write_text(yaml.safe_dump(spec_of(source).model_dump(mode="json")))
    port = free_port()
    command = [sys.executable, "-m", "deploy.cli", "serve", str(file), "--port", str(port)]
    server = Server("headrace", command, port, "/ready", folder / "headrace.log")
    try:
        server.wait_ready(START_S)
    except BaseException:
        server.stop()
        raise
    return server
