"""The engine with nothing around it, in a process of its own: submit, step, look at the clock.

It gets prompts as token ids, as it would from a router, and keeps as many of them under way as there are
streams. Between measurements the process waits on a pipe and uses nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from load import Figures

from deploy.bench.request import BenchRequest
from workers.config import EngineConfig

START_S = 300.0
NICENESS = 0  # that of our workers; both sides must fare alike beside other processes


class BareEngine:
    """Started at once; ready when the constructor returns."""

    name = "bare engine"

    def __init__(self, source: str, config: EngineConfig) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, source, config), daemon=True)
        self._process.start()
        theirs.close()
        if not self._connection.poll(START_S):
            raise TimeoutError(f"the bare engine did not start within {START_S:g} s")
        self._connection.recv()

    def measure(self, requests: Sequence[BenchRequest], num_streams: int) -> Figures:
        self._connection.send((requests, num_streams))
        figures: Figures = self._connection.recv()
        return figures

    def stop(self) -> None:
        self._connection.close()
        self._process.join(10)
        self._process.kill()


def _serve(connection: Connection, source: str, config: EngineConfig) -> None:
    os.nice(NICENESS)
    driver = _Driver(source, config)
    connection.send("ready")
    while True:
        try:
            requests, num_streams = connection.recv()
        except EOFError:
            return
        connection.send(driver.measure(requests, num_streams))


class _Driver:
    def __init__(self, source: str, config: EngineConfig) -> None:
        from tokenizers import Tokenizer

        from workers.engine import Engine
        from workers.load.model import load_model

        model = load_model(source, config.weights, name="bench", device=config.device, kernels=config.kernels)
        self._engine = Engine(model, config, hash_key=b"bench")
        self._engine.warm_up()
        self._tokenizer: Any = Tokenizer.from_str(model.card.tokenizer_json.decode())
        self._num_submitted = 0

    def measure(self, requests: Sequence[BenchRequest], num_streams: int) -> Figures:
        waiting = deque(
            (self._tokenizer.encode(request.turns[0]).ids, request.max_tokens) for request in requests
        )
        times: dict[str, list[float]] = {}  # of submission, then of each token
        running: set[str] = set()
        started_s = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < num_streams:
                request_id = self._submit(*waiting.popleft())
                running.add(request_id)
                times[request_id] = [time.perf_counter()]
            output = self._engine.step()
            now_s = time.perf_counter()
            for delta in output.deltas:
                if delta.error is not None:
                    raise RuntimeError(f"the bare engine failed: {delta.error}")
                times[delta.request_id] += [now_s] * len(delta.token_ids)
            running -= set(output.finished_ids)
        wall_s = time.perf_counter() - started_s
        num_tokens = sum(len(stamps) - 1 for stamps in times.values())
        ttfts_s = [stamps[1] - stamps[0] for stamps in times.values()]
        itls_s = [(stamps[-1] - stamps[1]) / max(len(stamps) - 2, 1) for stamps in times.values()]
        return Figures.of(wall_s, num_tokens, ttfts_s, itls_s)

    def _submit(self, prompt_ids: list[int], max_tokens: int) -> str:
        from workers.sampling.params import SamplingParams
        from workers.wire import Submit

        self._num_submitted += 1
        request_id = str(self._num_submitted)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self._engine.submit(Submit(request_id, prompt_ids, params))
        return request_id
