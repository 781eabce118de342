"""A gang of four ranks under Ray: it answers, and whichever rank is lost, it ends as one and comes back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e.cluster import Cluster, descendants, is_alive, wait_for

MODEL = "smollm2-135m"
PROMPT = "The capital of France is"
NOTICE_S = 5.0
SPEC = """
models:
  - name: smollm2-135m
    source: builtin:smollm2-135m
    pools:
      - parallel: {tensor: 2, pipeline: 2}
        kv: {memory: 128MiB}
"""


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("gang")
    (folder / "cluster.yaml").write_text(SPEC)
    running = Cluster.start(folder / "cluster.yaml", folder / "log.txt")
    try:
        yield running
    finally:
        assert running.stop() == set()


@pytest.fixture(scope="module")
def asker(gang: Cluster) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gang.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def ranks(cluster: Cluster) -> list[int]:
    """Pids, the leader's first."""
    found = []
    for pid in descendants(cluster.process.pid):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[0]
        if "FollowerActor" in title:
            found.append(pid)
    (worker,) = cluster.status()["workers"]
    return [worker["pid"], *sorted(found)]


def answer(client: OpenAI) -> str:
    return client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0).choices[0].text


def test_four_ranks_answer_as_one_worker(gang: Cluster, asker: OpenAI) -> None:
    assert "Paris" in answer(asker)
    assert len(ranks(gang)) == 4
    for axis in ("tensor", "pipeline"):
        assert gang.metrics("headrace_collective_seconds_total", axis=axis) > 0


@pytest.mark.parametrize(("rank", "fault"), [(3, signal.SIGKILL), (0, signal.SIGSTOP)])
def test_a_lost_rank_ends_the_gang_and_another_takes_its_place(
    gang: Cluster, asker: OpenAI, rank: int, fault: int
) -> None:
    expected = answer(asker)
    (before,) = gang.status()["workers"]
    pids = ranks(gang)
    endings: list[tuple[str, float]] = []

    def stream() -> None:
        try:
            for _ in asker.completions.create(
                model=MODEL, prompt="Once", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
            ):
                pass
            endings.append(("finished", time.monotonic()))
        except openai.APIError as error:
            endings.append((str(error), time.monotonic()))

    thread = threading.Thread(target=stream)
    thread.start()
    wait_for(lambda: gang.metrics("headrace_worker_running_sequences") == 1, 20, "the stream")
    faulted_at = time.monotonic()
    os.kill(pids[rank], fault)
    thread.join(10)
    ((text, ended_at),) = endings
    assert "was lost" in text
    assert ended_at - faulted_at < NOTICE_S
    wait_for(lambda: not any(map(is_alive, pids)), NOTICE_S, "every rank to be gone")
    assert time.monotonic() - faulted_at < NOTICE_S + 1

    def is_back() -> bool:
        (now,) = gang.status()["workers"]
        return bool(now["state"] == "ready" and now["epoch"] > before["epoch"])

    wait_for(is_back, 90, "the gang to be back")

    def answered() -> Any:
        try:
            return answer(asker)
        except openai.APIStatusError:
            return None

    assert wait_for(answered, 10, "the next answer") == expected
    gang.wait_idle()
