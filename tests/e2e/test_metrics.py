"""What is exported equals what the client measured."""

from __future__ import annotations

import time

from openai import OpenAI

from tests.e2e.cluster import Cluster, total, wait_for

MODEL = "smollm2-135m"
NAMES = ("ttft", "itl", "e2e")


def counts(cluster: Cluster) -> dict[str, float]:
    """What one scrape says: a router's numbers belong together in it."""
    samples = cluster.samples()
    histograms = {
        f"{name}_{part}": total(samples, f"headrace_{name}_seconds_{part}")
        for name in NAMES
        for part in ("sum", "count")
    }
    return histograms | {
        "prompt": total(samples, "headrace_prompt_tokens_total"),
        "generated": total(samples, "headrace_generated_tokens_total"),
    }


def test_exported_latencies_and_tokens_are_what_the_client_saw(cluster: Cluster, client: OpenAI) -> None:
    cluster.wait_idle()
    time_of_push = 2.5  # each router replica pushes its numbers once a second
    deadline = time.monotonic() + time_of_push
    wait_for(lambda: time.monotonic() > deadline, 10, "earlier pushes to land")
    before = counts(cluster)
    num_tokens = prompt_tokens = 0
    ttft = e2e = gaps = 0.0
    for run in range(4):
        started = last = time.monotonic()
        first = None
        for chunk in client.completions.create(
            model=MODEL,
            prompt=f"Measure run {run}: " + "time flies, " * 30,
            max_tokens=32,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        ):
            now = time.monotonic()
            if chunk.choices and first is None:
                first = now
                ttft += now - started
            if chunk.usage is not None:
                num_tokens += chunk.usage.completion_tokens
                prompt_tokens += chunk.usage.prompt_tokens
            else:
                last = now
        assert first is not None
        gaps += last - first
        e2e += last - started

    def seen() -> dict[str, float] | None:
        after = {name: value - before[name] for name, value in counts(cluster).items()}
        return after if after["e2e_count"] == 4 else None

    after = wait_for(seen, 10, "all four requests to be counted")
    assert after["generated"] == num_tokens == 128
    assert after["prompt"] == prompt_tokens
    assert after["ttft_count"] == 4
    assert after["itl_count"] == 4 * 31
    # The client's clock also counts the way there and back; on a busy machine that is some milliseconds each.
    assert abs(after["ttft_sum"] - ttft) < 0.1 * ttft + 4 * 0.03
    assert abs(after["itl_sum"] - gaps) < 0.1 * gaps + 4 * 0.03
    assert abs(after["e2e_sum"] - e2e) < 0.1 * e2e + 4 * 0.03


def test_histograms_have_edges_at_the_slos(cluster: Cluster) -> None:
    text = cluster.get("/metrics")
    assert any("headrace_ttft_seconds_bucket" in line and 'le="0.2"' in line for line in text.splitlines())
    assert any("headrace_itl_seconds_bucket" in line and 'le="0.05"' in line for line in text.splitlines())


def test_both_workers_and_both_router_replicas_report(cluster: Cluster, client: OpenAI) -> None:
    def served() -> bool:
        for _ in range(4):
            client.completions.create(model=MODEL, prompt="hello there", max_tokens=1)
        lines = cluster.get("/metrics").splitlines()
        workers = {
            line.split('worker="')[1].split('"')[0]
            for line in lines
            if line.startswith("headrace_worker_step_seconds_count")
        }
        replicas = {
            line.split('replica="')[1].split('"')[0]
            for line in lines
            if line.startswith("headrace_e2e_seconds_count")
        }
        return len(workers) == 2 and len(replicas) == 2

    wait_for(served, 20, "two workers and two replicas to have served")


def test_health_and_ready_answer(cluster: Cluster) -> None:
    cluster.get("/health")
    cluster.get("/ready")


def test_no_counter_ever_goes_back_whichever_replica_is_scraped(cluster: Cluster, client: OpenAI) -> None:
    last: dict[str, float] = {}
    for _ in range(12):
        client.completions.create(model=MODEL, prompt="hello there", max_tokens=1)
        for sample in cluster.samples():
            if sample.name.endswith(("_total", "_count", "_sum", "_bucket")):
                key = f"{sample.name}{sorted(sample.labels.items())}"
                assert sample.value >= last.get(key, 0.0), key
                last[key] = sample.value
    assert last
