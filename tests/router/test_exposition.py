"""Texts of many processes make one exposition that a Prometheus client reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.exposition import merge


def text(replica: str, value: float) -> str:
    registry = CollectorRegistry()
    counter = Counter("x_requests", "Requests.", ["replica", "path"], registry=registry)
    counter.labels(replica, 'a "quoted" {path} with spaces').inc(value)
    histogram = Histogram("x_seconds", "Seconds.", ["replica"], buckets=(0.2, 1.0), registry=registry)
    histogram.labels(replica).observe(value)
    return generate_latest(registry).decode()


def test_families_stand_together_and_every_sample_is_kept() -> None:
    merged = merge([text("a", 1), text("b", 2)])
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    requests = {
        s.labels["replica"]: s.value for s in families["x_requests"].samples if s.name == "x_requests_total"
    }
    assert requests == {"a": 1, "b": 2}
    buckets = [s for s in families["x_seconds"].samples if s.name == "x_seconds_bucket"]
    assert len(buckets) == 6
    assert merged.count("# TYPE x_seconds histogram") == 1
    names = [line.split("{")[0] for line in merged.splitlines() if line.startswith("x_seconds")]
    assert len(names) == len(buckets) + 6  # sums, counts and creation times


def test_a_series_that_two_texts_give_is_kept_once_and_rubbish_is_dropped() -> None:
    merged = merge([text("a", 1), text("a", 5), "# HELP\nnot a sample\n{broken} 1\n\n"])
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    (requests,) = [s for s in families["x_requests"].samples if s.name == "x_requests_total"]
    assert requests.value == 1
