"""An engine driven with as many requests under way as there are streams, and what the clock said.

Imported by scripts that run in other engines' environments, so it needs nothing but Python. Commands come as
lines of JSON on standard input, results go as lines to what standard output was; whatever a library prints
goes to standard error. Between two commands the process waits for a line and uses nothing.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol


class Engine(Protocol):
    def submit(self, request_id: int, prompt_ids: list[int], max_tokens: int) -> None:
        """Greedy, and so many tokens whatever they are."""

    def step(self) -> Iterable[tuple[int, int, bool]]:
        """Of each request that got on: its id, how many tokens came, whether it has ended."""


def drive(engine: Engine, prompts: list[list[int]], max_tokens: int, num_streams: int) -> dict:
    """Seconds from start to end, and of each request from its submission to each of its tokens."""
    waiting = deque(enumerate(prompts))
    running: set[int] = set()
    submitted_s: dict[int, float] = {}
    tokens_s: dict[int, list[float]] = {number: [] for number in range(len(prompts))}
    started_s = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < num_streams:
            number, prompt_ids = waiting.popleft()
            submitted_s[number] = time.perf_counter()
            engine.submit(number, prompt_ids, max_tokens)
            running.add(number)
        for number, num_tokens, has_ended in engine.step():
            tokens_s[number] += [time.perf_counter() - submitted_s[number]] * num_tokens
            if has_ended:
                running.discard(number)
    return {"wall_s": time.perf_counter() - started_s, "tokens_s": list(tokens_s.values())}


def claim_stdout() -> int:
    """Before any library is imported: what is printed from now on goes to standard error."""
    results = os.dup(1)
    os.dup2(2, 1)
    return results


def serve(engine: Engine, results: int) -> None:
    """Until standard input ends."""
    with os.fdopen(results, "w", buffering=1) as lines:
        print(json.dumps("ready"), file=lines)
        for line in sys.stdin:
            print(json.dumps(drive(engine, **json.loads(line))), file=lines)
