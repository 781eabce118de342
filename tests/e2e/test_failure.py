"""Workers that die: their requests fail soon, they come back, and with none left the answer is 503."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e.cluster import Cluster, wait_for

MODEL = "smollm2-135m"


def worker_pids(cluster: Cluster) -> list[int]:
    return [worker["pid"] for worker in cluster.status()["workers"] if worker["state"] == "ready"]


def test_a_killed_worker_fails_its_requests_within_5_s_and_comes_back(
    cluster: Cluster, client: OpenAI
) -> None:
    endings: list[tuple[str, float]] = []

    def stream() -> None:
        try:
            for _ in client.completions.create(
                model=MODEL, prompt="Once", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
            ):
                pass
            endings.append(("finished", time.monotonic()))
        except openai.APIError as error:
            endings.append((str(error), time.monotonic()))

    threads = [threading.Thread(target=stream) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: cluster.metrics("headrace_worker_running_sequences") == 4, 20, "four streams")
    killed_at = time.monotonic()
    for pid in worker_pids(cluster):
        os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(10)
    assert len(endings) == 4
    assert all(text != "finished" and at - killed_at < 5 for text, at in endings), endings

    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(model=MODEL, prompt="Hi", max_tokens=2)
    assert refused.value.status_code == 503
    assert int(refused.value.response.headers["retry-after"]) >= 1

    wait_for(lambda: len(worker_pids(cluster)) == 2, 60, "both workers to be back")

    def answered() -> Any:
        try:
            return client.completions.create(model=MODEL, prompt="Hi", max_tokens=2)
        except openai.APIStatusError:
            return None

    wait_for(answered, 10, "the next request to be served")
    cluster.wait_idle()
