"""A gang dies as one: whichever rank dies, hangs, stops or raises, whatever it was doing, within 5 seconds its
requests have ended and every rank is gone."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parity.families import save, tiny_model
from tests.workers.shards.gangs import SECRET
from tests.workers.shards.processes import Processes
from tests.workers.test_server import Router
from workers.sampling.params import SamplingParams
from workers.wire import Step, Submit, ToRouter

NOTICE_S = 5.0
RAISE, HANG = signal.SIGUSR1, signal.SIGUSR2
PARAMS = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
PROMPT_TOKENS = {"prefill": 400, "decode": 8}
DEGREES = [(2, 1), (1, 2), (2, 2)]
QUICK = [
    (degrees, rank, fault, phase)
    for degrees in DEGREES
    for rank in range(degrees[0] * degrees[1])
    for fault, phase in itertools.product((signal.SIGKILL, RAISE), PROMPT_TOKENS)
    if fault == signal.SIGKILL or phase == ("prefill", "decode")[rank % 2]
]
SLOW = [
    (degrees, rank, fault, "prefill" if (rank + (fault == HANG)) % 2 else "decode")
    for degrees in DEGREES
    for rank in range(degrees[0] * degrees[1])
    for fault in (signal.SIGSTOP, HANG)
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("model")
    save(tiny_model("llama"), folder)
    return str(folder)


@pytest.fixture
def processes(source: str, request: pytest.FixtureRequest) -> Iterator[Processes]:
    tensor, pipeline = request.getfixturevalue("degrees")
    running = Processes(
        source, weights="fp32", tensor=tensor, pipeline=pipeline, max_step_tokens=16, kv_memory_bytes=8 << 20
    )
    try:
        yield running
    finally:
        running.kill()


async def interrupted(processes: Processes, phase: str, rank: int, fault: int) -> float:
    """Order the fault in the midst of the phase; seconds until the request's link broke."""
    router = await Router.attach(processes.endpoint.port, secret=SECRET)
    prompt = [3 + index % 190 for index in range(PROMPT_TOKENS[phase])]
    router.send(Submit("r", prompt, PARAMS))

    def has_begun(message: ToRouter) -> bool:
        if not isinstance(message, Step):
            return False
        return bool(message.deltas) if phase == "decode" else message.load.num_running > 0

    if phase == "prefill":
        await asyncio.sleep(0.3)  # of the 1.3 s that the prompt takes; no step is told before it is done
    else:
        await router.read_until(has_begun)
    processes.fault(rank, fault)
    started = time.monotonic()
    try:
        await router.read_until(
            lambda message: isinstance(message, Step) and any(d.finish for d in message.deltas)
        )
    except (asyncio.IncompleteReadError, ConnectionError):
        return time.monotonic() - started
    finally:
        await router.close()
    raise AssertionError("the request has ended as if nothing had happened")


def assert_all_end(processes: Processes, phase: str, rank: int, fault: int) -> None:
    ended_s = asyncio.run(interrupted(processes, phase, rank, fault))
    deadline = time.monotonic() + NOTICE_S - ended_s
    while not processes.are_gone and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended_s < NOTICE_S
    assert processes.are_gone


@pytest.mark.parametrize(("degrees", "rank", "fault", "phase"), QUICK)
def test_a_rank_that_dies_or_raises_takes_the_gang_with_it(
    processes: Processes, degrees: tuple[int, int], rank: int, fault: int, phase: str
) -> None:
    assert_all_end(processes, phase, rank, fault)


@pytest.mark.parametrize(("degrees", "rank", "fault", "phase"), SLOW)
def test_a_rank_that_is_stopped_or_hangs_takes_the_gang_with_it(
    processes: Processes, degrees: tuple[int, int], rank: int, fault: int, phase: str
) -> None:
    assert_all_end(processes, phase, rank, fault)
