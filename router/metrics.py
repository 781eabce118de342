"""What a router replica exports: the latencies its clients see, requests and tokens.

A token counts at the instant at which its chunk is handed to the client's connection (of an answer sent
whole, at which it would have been). TTFT runs from the arrival of the request's head to its first token;
ITL is one observation per further token of each sequence, the gap to the token before it, so tokens that
leave in one write have gaps of 0; E2E runs to the last byte and is observed for finished requests only.
Labels are bounded: what clients choose freely never becomes one.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from router.api.answer import Usage

# Each has an edge at its SLO: 0.2 s to the first token, 0.05 s between tokens.
TTFT_EDGES_S = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
ITL_EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
E2E_EDGES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
QUEUE_EDGES_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

UNKNOWN_MODEL = "unknown"  # of requests that name no model that is served
CLIENT_LEFT = 499  # the status of a request whose client did not wait for the answer

_LABELS = ("model", "endpoint", "replica")


class Series:
    """The series of one (model, endpoint)."""

    def __init__(self, metrics: RouterMetrics, model: str, endpoint: str) -> None:
        self._metrics = metrics
        values = self._values = (model, endpoint, metrics.replica)
        self._requests = metrics.requests
        self.ttft = metrics.ttft.labels(*values)
        self.itl = metrics.itl.labels(*values)
        self.e2e = metrics.e2e.labels(*values)
        self.queue = metrics.queue.labels(*values)
        self.prompt_tokens = metrics.prompt_tokens.labels(*values)
        self.cached_tokens = metrics.cached_tokens.labels(*values)
        self.generated_tokens = metrics.generated_tokens.labels(*values)
        self.cancelled = metrics.cancelled.labels(*values)
        self.in_flight = metrics.in_flight.labels(*values)

    def begin(self) -> None:
        """One request has begun."""
        self._metrics.num_changes += 1
        self.in_flight.inc()

    def count(self, status: int) -> None:
        """One request has ended with `status`."""
        self._metrics.num_changes += 1
        self._requests.labels(*self._values, str(status)).inc()


class RouterMetrics:
    """The registry of the router replica called `replica`."""

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.num_changes = 0  # grows whenever a request begins or ends
        self._registry = registry = CollectorRegistry()
        self._series: dict[tuple[str, str], Series] = {}

        def histogram(name: str, text: str, edges: tuple[float, ...]) -> Histogram:
            return Histogram(f"headrace_{name}_seconds", text, _LABELS, buckets=edges, registry=registry)

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"headrace_{name}", text, (*_LABELS, *more), registry=registry)

        self.ttft = histogram("ttft", "From a request's arrival to its first token.", TTFT_EDGES_S)
        self.itl = histogram("itl", "From one token of a sequence to the next.", ITL_EDGES_S)
        self.e2e = histogram("e2e", "From a request's arrival to the end of its answer.", E2E_EDGES_S)
        self.queue = histogram(
            "queue", "From a prompt's arrival at its worker to its first step.", QUEUE_EDGES_S
        )
        self.requests = counter(
            "requests", "Requests by HTTP status; 499: the client left; amid a stream: the error's.", "status"
        )
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that got a token.")
        self.cached_tokens = counter("cached_tokens", "Prompt tokens that were found in a prefix cache.")
        self.generated_tokens = counter(
            "generated_tokens", "Tokens generated, whether the client saw them or not."
        )
        self.cancelled = counter(
            "cancelled_sequences", "Sequences stopped at their worker: the client left, a stop string."
        )
        self.in_flight = Gauge(
            "headrace_in_flight_requests", "Requests that are being answered.", _LABELS, registry=registry
        )

    def series(self, model: str, endpoint: str) -> Series:
        """The series of a model that is served, or of UNKNOWN_MODEL."""
        found = self._series.get((model, endpoint))
        if found is None:
            found = self._series[model, endpoint] = Series(self, model, endpoint)
        return found

    def exposition(self) -> str:
        """The Prometheus text of all of it."""
        return generate_latest(self._registry).decode()


class RequestMeter:
    """Measures one request from `started_s` on; every `now_s` is of the same clock. `end` counts it, once."""

    __slots__ = ("_has_ended", "_last_s", "_series", "_started_s")

    def __init__(self, series: Series, started_s: float) -> None:
        self._series = series
        self._started_s = started_s
        self._last_s: dict[int, float] = {}  # by choice: when its latest token left
        self._has_ended = False
        series.begin()

    def observe(self, choice: int, num_tokens: int, now_s: float) -> None:
        """`num_tokens` tokens of a choice leave for the client, in one write."""
        if not num_tokens:
            return
        last_s = self._last_s.get(choice)
        if last_s is not None:
            self._series.itl.observe(now_s - last_s)
        elif not self._last_s:
            self._series.ttft.observe(now_s - self._started_s)
        self._last_s[choice] = now_s
        for _ in range(num_tokens - 1):
            self._series.itl.observe(0.0)

    def observe_queue(self, queue_s: float) -> None:
        """A prompt has waited this long at its worker."""
        self._series.queue.observe(queue_s)

    def observe_cancel(self, num_sequences: int) -> None:
        """So many sequences are stopped at their workers."""
        self._series.cancelled.inc(num_sequences)

    def end(self, status: int, usage: Usage | None, now_s: float, *, is_finished: bool) -> None:
        """The request is over, with what it had used by then. Ending twice is harmless."""
        if self._has_ended:
            return
        self._has_ended = True
        series = self._series
        series.in_flight.dec()
        series.count(status)
        if is_finished:
            series.e2e.observe(now_s - self._started_s)
        if usage is not None and self._last_s:
            series.prompt_tokens.inc(usage.prompt_tokens)
            series.cached_tokens.inc(usage.prompt_tokens_details.cached_tokens)
            series.generated_tokens.inc(usage.completion_tokens)
