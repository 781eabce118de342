"""What a worker exports to Prometheus: its engine's load, blocks, tokens and step times.

One registry per worker process, every sample labelled with the model and the worker's id. The router's
`/metrics` merges it with everyone else's (`router/exposition.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from workers.engine import StepOutput
from workers.wire import Load

STEP_EDGES_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class WorkerMetrics:
    """Counts what the engine's steps did; `exposition` is the Prometheus text of all of it."""

    def __init__(
        self,
        model: str,
        worker_id: str,
        num_blocks: int,
        collective_s: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`collective_s` tells the seconds spent in collectives so far, by the axis of parallelism."""
        self._registry = CollectorRegistry()
        self._collective_s = collective_s
        self._labels = values = (model, worker_id)
        labels = ["model", "worker"]

        def gauge(name: str, text: str, extra: list[str] | None = None) -> Gauge:
            return Gauge(name, text, labels + (extra or []), registry=self._registry)

        def counter(name: str, text: str, extra: list[str] | None = None) -> Counter:
            return Counter(name, text, labels + (extra or []), registry=self._registry)

        blocks = gauge("headrace_worker_kv_blocks", "KV blocks by state.", ["state"])
        tokens = counter("headrace_worker_tokens", "Tokens computed, by phase.", ["phase"])
        steps = Histogram(
            "headrace_worker_step_seconds",
            "Time of one engine step; phase is prefill, decode, or mixed.",
            [*labels, "phase"],
            buckets=STEP_EDGES_S,
            registry=self._registry,
        )
        # Looking a series up costs more than changing it, so each is looked up once.
        self._running = gauge("headrace_worker_running_sequences", "Sequences in the running batch.").labels(
            *values
        )
        self._waiting = gauge("headrace_worker_waiting_sequences", "Sequences waiting for admission.").labels(
            *values
        )
        self._free, self._cached, self._used = (
            blocks.labels(*values, state) for state in ("free", "cached", "used")
        )
        self._prefilled, self._decoded = (tokens.labels(*values, phase) for phase in ("prefill", "decode"))
        self._steps = {phase: steps.labels(*values, phase) for phase in ("prefill", "decode", "mixed")}
        self._hits = counter(
            "headrace_worker_prefix_cached_tokens", "Prompt tokens served from the cache."
        ).labels(*values)
        self._drafted = counter("headrace_worker_drafted_tokens", "Tokens drafted by speculation.").labels(
            *values
        )
        self._accepted = counter(
            "headrace_worker_accepted_tokens", "Drafted tokens that sampling drew as well."
        ).labels(*values)
        self._preemptions = counter(
            "headrace_worker_preemptions", "Sequences preempted for want of blocks."
        ).labels(*values)
        self._faults = counter(
            "headrace_worker_step_faults", "Steps that raised; their requests failed."
        ).labels(*values)
        self._collectives = counter(
            "headrace_collective_seconds",
            "Time of the leader in collectives of its gang, waiting for other ranks included; axis is tensor "
            "or pipeline.",
            ["axis"],
        )
        self._collected_s: dict[str, float] = {}
        self._set_load(Load(0, 0, num_blocks, 0, 0, 0))

    def observe(self, output: StepOutput) -> None:
        """Count one step."""
        self._set_load(output.load)
        if output.phase is not None:
            self._steps[output.phase].observe(output.seconds)
        if output.num_prefill_tokens:
            self._prefilled.inc(output.num_prefill_tokens)
        if output.num_decodes:
            self._decoded.inc(output.num_decodes + output.num_accepted_tokens)
        if output.num_drafted_tokens:
            self._drafted.inc(output.num_drafted_tokens)
            self._accepted.inc(output.num_accepted_tokens)
        if output.num_cached_tokens:
            self._hits.inc(output.num_cached_tokens)
        if output.num_preemptions:
            self._preemptions.inc(output.num_preemptions)
        if output.has_failed:
            self._faults.inc()

    def exposition(self) -> str:
        for axis, seconds in self._collective_s().items():
            self._collectives.labels(*self._labels, axis).inc(
                max(seconds - self._collected_s.get(axis, 0.0), 0.0)
            )
            self._collected_s[axis] = seconds
        return generate_latest(self._registry).decode()

    def _set_load(self, load: Load) -> None:
        self._running.set(load.num_running)
        self._waiting.set(load.num_waiting)
        self._free.set(load.num_free_blocks)
        self._cached.set(load.num_cached_blocks)
        self._used.set(load.num_used_blocks)
