"""What a run amounts to: latencies in percentiles, tokens per second, goodput under an SLO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from deploy.bench.run import Outcome

SLO_TTFT_S, SLO_ITL_S = 0.2, 0.05


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one latency over a run, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread | None:
        """None if there is nothing to describe."""
        values = sorted(value * 1e3 for value in seconds)
        if not values:
            return None
        return cls(
            sum(values) / len(values),
            percentile(values, 50),
            percentile(values, 90),
            percentile(values, 99),
            values[-1],
        )


def percentile(ordered: list[float], percent: float) -> float:
    """Of values in order, with the values between two neighbours on a straight line."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Summary:
    """Latencies are those of answered requests; `itl` is of all gaps, `mean_itl` of requests.

    Goodput counts the answers with a TTFT within 200 ms and a mean ITL within 50 ms.
    """

    wall_s: float
    num_answered: int
    num_failed: int
    num_given_up: int
    errors: dict[str, int]
    num_input_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    goodput_share: float
    ttft_ms: Spread | None
    itl_ms: Spread | None
    mean_itl_ms: Spread | None
    e2e_ms: Spread | None
    late_ms: float

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def summarise(outcome: Outcome) -> Summary:
    """The summary of a run, also of one that was stopped early."""
    answered = [record for record in outcome.records if record.error is None]
    errors = Counter(record.error for record in outcome.records if record.error is not None)
    wall_s = max(outcome.wall_s, 1e-9)
    num_input = sum(record.num_input_tokens for record in answered)
    num_output = sum(record.num_output_tokens for record in answered)
    num_good = sum(record.meets(SLO_TTFT_S, SLO_ITL_S) for record in answered)
    return Summary(
        wall_s=outcome.wall_s,
        num_answered=len(answered),
        num_failed=errors.total(),
        num_given_up=outcome.num_given_up,
        errors=dict(errors.most_common()),
        num_input_tokens=num_input,
        num_cached_tokens=sum(record.num_cached_tokens for record in answered),
        num_output_tokens=num_output,
        output_tokens_per_s=num_output / wall_s,
        total_tokens_per_s=(num_input + num_output) / wall_s,
        requests_per_s=len(answered) / wall_s,
        goodput_per_s=num_good / wall_s,
        goodput_share=num_good / max(len(outcome.records), 1),
        ttft_ms=Spread.of(_known(record.ttft_s for record in answered)),
        itl_ms=Spread.of(gap for record in answered for gap in record.gaps_s),
        mean_itl_ms=Spread.of(_known(record.mean_itl_s for record in answered)),
        e2e_ms=Spread.of(record.e2e_s for record in answered),
        late_ms=outcome.late_s * 1e3,
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
