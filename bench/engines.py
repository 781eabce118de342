"""Our engine against the others that one would use on a CPU: llama.cpp, OpenVINO GenAI, vLLM.

    python bench/engines.py [--formats bf16 int8 int4] [--peers DIR] [--rounds N] [--json FILE] [--check]

For each format of weights all engines are up at the same time with the same weights, and are measured in
turns with the same prompts. Ours, OpenVINO and vLLM are driven as libraries, by the same loop; llama.cpp by
its own server, which is in C++ like the engine. The peers are installed first, each in an environment of
its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rival_environment
from checkpoint import export_bf16, parameters_of
from engine_process import SIDE, EngineProcess, headrace_engine, tokenizer_of
from headrace import MODEL, write_spec
from limits import Limits, Work
from peer_environments import DEFAULT_FOLDER, LlamaCpp, OpenVino, PeerMissing
from prompts import Point
from report import Report, arguments_parser
from servers import Server, ServerFailed, end_cleanly_on_sigterm, free_port
from turns import ServedSide, Side, Turns

SOURCE = "builtin:smollm2-135m"
FORMATS = ("bf16", "int8", "int4")
GGUF_FORMATS = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
BITS_PER_WEIGHT = {"bf16": 16.0, "int8": 8.5, "int4": 4.5}
NUM_INPUT_TOKENS, NUM_OUTPUT_TOKENS, NUM_LONG_TOKENS, NUM_NEW_TOKENS = 128, 128, 1024, 32
WORDS_PER_TOKEN = 0.82  # of the bench's prose with this model's tokenizer, which is measured and reported
MAX_SEQUENCE_TOKENS = 2048
SERVER_START_S = 120.0
MAX_HIT_TTFT_MS = 30.0


def words(num_tokens: int) -> int:
    return round(num_tokens * WORDS_PER_TOKEN)


ONE = Point("1 stream", 1, 4, words(NUM_INPUT_TOKENS), NUM_OUTPUT_TOKENS)
PREFILL = Point("prefill", 1, 4, words(NUM_LONG_TOKENS), 2)
HIT = Point("prefix hit", 1, 6, words(NUM_NEW_TOKENS), 2, num_shared_words=words(NUM_LONG_TOKENS))
BATCHES = tuple(
    Point(f"{streams} streams", streams, 2 * streams, words(NUM_INPUT_TOKENS), NUM_OUTPUT_TOKENS)
    for streams in (8, 16, 32)
)
POINTS = (ONE, PREFILL, HIT, *BATCHES)


@dataclass(frozen=True, slots=True)
class Bars:
    """Of our rate to a peer's, at least; None: not asked."""

    decode: float | None = None
    prefill: float | None = None
    batches: float | None = None


BARS = {
    ("bf16", "llama.cpp"): Bars(0.97, 1.05, 1.15),
    ("bf16", "openvino"): Bars(None, 1.05, 1.15),
    ("bf16", "vllm"): Bars(None, 1.05, 1.15),
    ("int8", "openvino"): Bars(1.25, 1.25, 1.25),
    ("int8", "llama.cpp"): Bars(1.05, None, None),
    ("int4", "openvino"): Bars(None, 1.1, 1.1),
    ("int4", "llama.cpp"): Bars(1.05, 1.1, 1.1),
}


class Bench:
    """Where everything is, and who of the engines is up."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._peers: Path = arguments.peers
        self._model = export_bf16(SOURCE, self._peers / "models/bf16")
        self._tokenizer = tokenizer_of(str(self._model))
        self._llama = LlamaCpp(self._peers)
        self._openvino = OpenVino(self._peers)

    def run(self, format_: str, limits: Limits) -> int:
        with ExitStack() as stack:
            ours = self._start_ours(format_)
            stack.callback(ours.stop)
            peers: list[Side] = []
            for start in (self._start_llama, self._start_openvino, self._start_vllm):
                try:
                    peer = start(format_)
                except (PeerMissing, ServerFailed) as error:
                    print(f"left out: {error}", file=sys.stderr)
                    continue
                if peer is not None:
                    side, stop = peer
                    stack.callback(stop)
                    peers.append(side)
            turns = Turns((ours, *peers), self._arguments.seed, self._arguments.quiet_wait)
            turns.take(POINTS, self._arguments.rounds)
        status = 0
        work = self._work(format_)
        for peer in peers:
            report = self._report(format_, turns, ours, peer, limits, work)
            status |= report.finish(self._arguments, part=f"{format_}, {peer.name}")
        return status

    def _gguf(self, format_: str) -> Path:
        from workers.load.sources import resolve

        self._llama.prepare()
        file = self._peers / f"models/{GGUF_FORMATS[format_]}.gguf"
        return self._llama.convert(resolve(SOURCE), GGUF_FORMATS[format_], file)

    def _start_ours(self, format_: str) -> EngineProcess:
        source = self._model
        if format_ != "bf16":
            try:
                source = self._gguf(format_)  # the very numbers that llama.cpp has
            except PeerMissing as error:
                print(f"our weights are rounded from bf16: {error}", file=sys.stderr)
        spec = write_spec(str(source), self._folder / f"{format_}.yaml", weights=format_)
        return headrace_engine("headrace", spec, self._tokenizer, self._folder / f"headrace-{format_}.log")

    def _start_llama(self, format_: str) -> tuple[Side, Callable[[], None]] | None:
        gguf = self._gguf(format_)
        port = free_port()
        command = self._llama.command(gguf, port, MODEL, 32, MAX_SEQUENCE_TOKENS)
        server = Server("llama.cpp", command, port, "/health", self._folder / f"llama-{format_}.log")
        try:
            server.wait_ready(SERVER_START_S)
        except BaseException:
            server.stop()
            raise
        server.sleep()
        return ServedSide(server, MODEL), server.stop

    def _start_openvino(self, format_: str) -> tuple[Side, Callable[[], None]] | None:
        self._openvino.prepare()
        model = self._openvino.export(self._model, format_, self._peers / f"models/openvino-{format_}")
        command = [str(self._openvino.python), str(SIDE / "openvino_engine.py"), str(model), "bf16", "1"]
        log = self._folder / f"openvino-{format_}.log"
        engine = EngineProcess("openvino", command, self._tokenizer, log)
        return engine, engine.stop

    def _start_vllm(self, format_: str) -> tuple[Side, Callable[[], None]] | None:
        if format_ != "bf16":
            return None  # its 8- and 4-bit formats for CPUs are not of this grouping
        venv = self._arguments.venv
        try:
            rival_environment.prepare(venv)
        except rival_environment.FAILURES as error:
            raise PeerMissing(f"vllm: {error}") from error
        command = [str(venv / "bin/python"), str(SIDE / "vllm_engine.py"), str(self._model), "bfloat16"]
        settings = rival_environment.environment(venv, os.cpu_count() or 1)
        log = self._folder / "vllm.log"
        engine = EngineProcess("vllm", command, self._tokenizer, log, settings)
        return engine, engine.stop

    def _work(self, format_: str) -> Work:
        layers, head = parameters_of(self._model)
        num_bytes = (layers + head) * BITS_PER_WEIGHT[format_] / 8
        return Work(round(num_bytes), layers, head, is_int8=format_ != "bf16")

    def _report(
        self, format_: str, turns: Turns, ours: Side, peer: Side, limits: Limits, work: Work
    ) -> Report:
        report = Report(f"Headrace against {peer.name}, {format_}", (ours.name, peer.name))
        bars = BARS[format_, peer.name]

        def compare(
            point: Point, name: str, least: float | None, rate: Callable[[Any], float], limit: float
        ) -> None:
            values = [[rate(figures) for figures in turns.figures(side, point)] for side in (ours, peer)]
            figure = report.compare(name, "tokens/s", *values)
            shares = [f"{sorted(of_side)[len(of_side) // 2] / limit:.2f}" for of_side in values]
            report.fact(f"{name}: share of the physical limit", f"{shares[0]} against {shares[1]}")
            if least is not None:
                report.bar(f"{format_}, {name}, to {peer.name}", figure.ratio, "≥", least)

        decode_s = work.decode_s(limits, 1)
        compare(ONE, "decode, 1 stream", bars.decode, lambda figures: 1e3 / figures.itl_ms, 1 / decode_s)
        num_long = self._num_tokens(PREFILL)
        limit = num_long / work.prefill_s(limits, num_long)
        compare(
            PREFILL,
            f"prefill of {num_long}",
            bars.prefill,
            lambda figures: num_long / figures.ttft_ms * 1e3,
            limit,
        )
        for point in BATCHES:
            step_s = work.decode_s(limits, point.num_streams)
            prompts_s = point.num_streams * work.prefill_s(limits, self._num_tokens(point))
            limit = point.num_streams * NUM_OUTPUT_TOKENS / (prompts_s + NUM_OUTPUT_TOKENS * step_s)
            compare(point, point.name, bars.batches, lambda figures: figures.tokens_per_s, limit)
        hit = report.compare(
            f"prefix of {num_long} found, TTFT",
            "ms",
            *([figures.ttft_ms for figures in turns.figures(side, HIT)] for side in (ours, peer)),
        )
        report.bar(f"{format_}, prefix hit, TTFT to {peer.name}", hit.ratio, "≤", 1.0)
        ours_ms = sorted(hit.ours)[len(hit.ours) // 2]
        report.bar(f"{format_}, prefix hit, TTFT", ours_ms, "≤", MAX_HIT_TTFT_MS, " ms")
        report.fact("cores used by others, most in one measurement", round(turns.most_disturbed, 2))
        report.fact("GB/s read", round(limits.read_bytes_per_s / 1e9, 1))
        report.fact(
            "TFLOP/s in bf16, int8", f"{limits.bf16_flops / 1e12:.2f}, {limits.int8_flops / 1e12:.2f}"
        )
        return report

    def _num_tokens(self, point: Point) -> int:
        lengths = sorted(len(self._tokenizer.encode(item.turns[0]).ids) for item in point.requests("0"))
        return int(lengths[len(lengths) // 2])


def main() -> int:
    arguments = parse()
    end_cleanly_on_sigterm()
    if arguments.json is not None:
        arguments.json.unlink(missing_ok=True)
    limits = Limits.measured()
    status = 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        bench = Bench(arguments, Path(folder))
        for format_ in arguments.formats:
            status |= bench.run(format_, limits)
    return status


def parse() -> argparse.Namespace:
    parser = arguments_parser(__doc__ or "", rounds=3)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS, help="of the weights")
    parser.add_argument(
        "--peers",
        type=Path,
        default=DEFAULT_FOLDER,
        help="where the other engines and the models are kept (default %(default)s)",
    )
    parser.add_argument(
        "--venv",
        type=Path,
        default=rival_environment.DEFAULT_VENV,
        help="the environment with vLLM (default %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
