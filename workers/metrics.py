"""What a worker exports to Prometheus: its engine's load, blocks, tokens and step times.

One registry per worker process, every sample labelled with the model and the worker's id. The router's
`/metrics` merges it with everyone else's (`router/exposition.py`).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from workers.engine import StepOutput
from workers.wire import Load

STEP_EDGES_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class WorkerMetrics:
    """Counts what the engine's steps did; `exposition` is the Prometheus text of all of it."""

    def __init__(self, model: str, worker_id: str, num_blocks: int) -> None:
        self._registry = CollectorRegistry()
        labels, self._values = ["model", "worker"], (model, worker_id)

        def gauge(name: str, text: str, extra: list[str] | None = None) -> Gauge:
            return Gauge(name, text, labels + (extra or []), registry=self._registry)

        def counter(name: str, text: str, extra: list[str] | None = None) -> Counter:
            return Counter(name, text, labels + (extra or []), registry=self._registry)

        self._running = gauge("headrace_worker_running_sequences", "Sequences in the running batch.")
        self._waiting = gauge("headrace_worker_waiting_sequences", "Sequences waiting for admission.")
        self._blocks = gauge("headrace_worker_kv_blocks", "KV blocks by state.", ["state"])
        self._tokens = counter("headrace_worker_tokens", "Tokens computed, by phase.", ["phase"])
        self._cached = counter("headrace_worker_prefix_cached_tokens", "Prompt tokens served from the cache.")
        self._preemptions = counter("headrace_worker_preemptions", "Sequences preempted for want of blocks.")
        self._faults = counter("headrace_worker_step_faults", "Steps that raised; their requests failed.")
        self._steps = Histogram(
            "headrace_worker_step_seconds",
            "Time of one engine step; phase is prefill, decode, or mixed.",
            [*labels, "phase"],
            buckets=STEP_EDGES_S,
            registry=self._registry,
        )
        self._cached.labels(*self._values)
        self._preemptions.labels(*self._values)
        self._faults.labels(*self._values)
        self._set_load(Load(0, 0, num_blocks, 0, 0, 0))

    def observe(self, output: StepOutput) -> None:
        """Count one step."""
        self._set_load(output.load)
        values = self._values
        if output.phase is not None:
            self._steps.labels(*values, output.phase).observe(output.seconds)
            self._tokens.labels(*values, "prefill").inc(output.num_prefill_tokens)
            self._tokens.labels(*values, "decode").inc(output.num_decodes)
        if output.num_cached_tokens:
            self._cached.labels(*values).inc(output.num_cached_tokens)
        if output.num_preemptions:
            self._preemptions.labels(*values).inc(output.num_preemptions)
        if output.has_failed:
            self._faults.labels(*values).inc()

    def exposition(self) -> str:
        return generate_latest(self._registry).decode()

    def _set_load(self, load: Load) -> None:
        values = self._values
        self._running.labels(*values).set(load.num_running)
        self._waiting.labels(*values).set(load.num_waiting)
        for state, count in (
            ("free", load.num_free_blocks),
            ("cached", load.num_cached_blocks),
            ("used", load.num_used_blocks),
        ):
            self._blocks.labels(*values, state).set(count)
