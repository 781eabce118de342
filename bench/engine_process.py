"""An engine with nothing around it, ours or another's, in a process of its own.

It gets prompts as token ids, as it would from a router. What runs in the process is in `engine_side/`.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from load import Figures
from servers import ServerFailed

from deploy.bench.request import BenchRequest

START_S = 600.0  # some compile their kernels when they start for the first time
MEASURE_S = 600.0
STOP_S = 10.0
SIDE = Path(__file__).with_name("engine_side")


class EngineProcess:
    """Started at once; ready when the constructor returns. Raises ServerFailed."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        tokenizer: Any,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        try:
            self._read_line(START_S)
        except BaseException:
            self.stop()
            raise

    def measure(self, requests: Sequence[BenchRequest], num_streams: int) -> Figures:
        """All requests must want as many tokens. Raises ServerFailed."""
        [max_tokens] = {request.max_tokens for request in requests}
        prompts = [self._tokenizer.encode(request.turns[0]).ids for request in requests]
        command = {"prompts": prompts, "max_tokens": max_tokens, "num_streams": num_streams}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        result = self._read_line(MEASURE_S)
        tokens_s: list[list[float]] = result["tokens_s"]
        short = [len(stamps) for stamps in tokens_s if len(stamps) != max_tokens]
        if short:
            raise ServerFailed(f"{self.name} gave {short[0]} tokens where {max_tokens} were asked for")
        ttfts_s = [stamps[0] for stamps in tokens_s]
        itls_s = [(stamps[-1] - stamps[0]) / max(len(stamps) - 1, 1) for stamps in tokens_s]
        return Figures.of(result["wall_s"], max_tokens * len(requests), ttfts_s, itls_s)

    def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read_line(self, timeout_s: float) -> Any:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            in_time = bool(selector.select(timeout_s))
        line = self._process.stdout.readline() if in_time else ""
        if not line:
            reason = "ended" if in_time else f"did not answer within {timeout_s:g} s"
            end = "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])
            raise ServerFailed(f"{self.name} {reason}:\n{end}")
        return json.loads(line)


def headrace_engine(name: str, spec_file: Path, tokenizer: Any, log: Path) -> EngineProcess:
    """The engine of the one worker of a specification. Raises ServerFailed."""
    command = [sys.executable, str(SIDE / "headrace_engine.py"), str(spec_file)]
    return EngineProcess(name, command, tokenizer, log)


def tokenizer_of(source: str) -> Any:
    """What the prompts of a model, a directory, a file or a builtin one, are encoded with."""
    from tokenizers import Tokenizer

    from workers.load.card import describe
    from workers.load.directory import DirectoryCheckpoint
    from workers.load.gguf import GgufCheckpoint
    from workers.load.sources import resolve

    path = resolve(source)
    checkpoint = GgufCheckpoint(path) if path.suffix == ".gguf" else DirectoryCheckpoint(path)
    return Tokenizer.from_str(describe(checkpoint, "bench", created=0).tokenizer_json.decode())
