"""The Headrace side of a comparison: one worker behind one router, started as a user would start it."""

from __future__ import annotations

import sys
from pathlib import Path

from servers import Server, free_port

from cluster.spec import parse_spec
from workers.config import Weights

MODEL = "smollm2-135m"
START_S = 300.0


def write_spec(source: str, file: Path, weights: Weights = "auto") -> Path:
    """One worker with all cores, everything else by default."""
    import yaml

    text = f"models: [{{name: {MODEL}, source: {source!r}, pools: [{{weights: {weights}}}]}}]"
    spec = parse_spec(text, "the bench's configuration")
    file.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
    return file


def start_headrace(spec_file: Path, folder: Path) -> Server:
    """Serving, when this returns. Raises ServerFailed."""
    port = free_port()
    command = [sys.executable, "-m", "deploy.cli", "serve", str(spec_file), "--port", str(port)]
    server = Server("headrace", command, port, "/ready", folder / "headrace.log")
    try:
        server.wait_ready(START_S)
    except BaseException:
        server.stop()
        raise
    return server
