"""How a model is cut among the ranks of a gang: stages of consecutive layers, lanes within a stage.

Rank r is lane r % T of stage r // T, of T tensor lanes and P pipeline stages. Lanes hold the same layers and
a part of every projection each: whole query heads with the KV heads they attend to, columns of the MLP, rows
of the vocabulary. A gang is a ring: the last stage hands its hidden states to the first, where the head is,
beside the embedding that many models share with it.

Nothing has to divide anything. KV heads go to lanes whole and in order; with more lanes than KV heads,
several lanes hold the same KV head and share its query heads. What cannot be cut is refused with the
equation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workers.errors import ConfigError
from workers.model.config import ModelConfig

UNITS = (32, 16, 1)  # sizes are cut in multiples of the first that can be: the native kernels' groups


@dataclass(frozen=True, slots=True)
class Span:
    """`first` .. `last` - 1."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first

    def times(self, factor: int) -> Span:
        return Span(self.first * factor, self.last * factor)

    def moved(self, offset: int) -> Span:
        return Span(self.first + offset, self.last + offset)


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank holds of `whole`; `config` are the sizes of that as if it were a model."""

    whole: ModelConfig
    lane: int
    num_lanes: int
    stage: int
    num_stages: int
    layers: Span
    q_heads: Span
    kv_heads: Span
    inner: Span  # of the MLP's intermediate size
    vocabulary: Span
    config: ModelConfig

    @property
    def is_first(self) -> bool:
        """Whether it begins a step, with the embedding, and ends it, with the head."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether its layers are the model's last."""
        return self.stage == self.num_stages - 1


@dataclass(frozen=True, slots=True)
class Cut:
    """A model cut into `tensor` × `pipeline` parts, by rank."""

    whole: ModelConfig
    tensor: int
    pipeline: int
    parts: tuple[Part, ...]


def cut(whole: ModelConfig, tensor: int = 1, pipeline: int = 1) -> Cut:
    """Raises ConfigError, with the equation that failed, if there are not enough heads, layers or columns."""
    _at_least("tensor", tensor, "query heads", whole.num_heads)
    _at_least("tensor", tensor, "columns of the MLP", whole.intermediate_size)
    _at_least("tensor", tensor, "tokens in the vocabulary", whole.vocab_size)
    _at_least("pipeline", pipeline, "layers", whole.num_layers)
    if whole.num_heads % whole.num_kv_heads:
        raise ConfigError(
            f"{whole.num_heads} query heads % {whole.num_kv_heads} KV heads = "
            f"{whole.num_heads % whole.num_kv_heads}, but must be 0"
        )
    stages = _stages(whole, pipeline)
    parts = [
        _part(whole, lane, tensor, stage, pipeline, stages[stage])
        for stage in range(pipeline)
        for lane in range(tensor)
    ]
    return Cut(whole, tensor, pipeline, tuple(parts))


def _at_least(degree: str, wanted: int, what: str, present: int) -> None:
    if wanted > present:
        raise ConfigError(
            f"parallel.{degree} = {wanted} > {present} {what} of the model; choose {present} or less"
        )


def _part(whole: ModelConfig, lane: int, num_lanes: int, stage: int, num_stages: int, layers: Span) -> Part:
    q_heads, kv_heads = _heads(whole, lane, num_lanes)
    inner = _share(whole.intermediate_size, lane, num_lanes)
    vocabulary = _share(whole.vocab_size, lane, num_lanes)
    config = replace(
        whole,
        num_heads=q_heads.size,
        num_kv_heads=kv_heads.size,
        intermediate_size=inner.size,
        vocab_size=vocabulary.size,
        layers=whole.layers[layers.first : layers.last],
    )
    return Part(
        whole, lane, num_lanes, stage, num_stages, layers, q_heads, kv_heads, inner, vocabulary, config
    )


def _heads(whole: ModelConfig, lane: int, num_lanes: int) -> tuple[Span, Span]:
    """Query and KV heads of a lane. Each of its KV heads serves equally many of its query heads."""
    num_kv = whole.num_kv_heads
    group = whole.num_heads // num_kv
    if num_lanes <= num_kv:
        kv_heads = _even(num_kv, lane, num_lanes)
        return kv_heads.times(group), kv_heads
    kv_head = lane * num_kv // num_lanes
    sharing = [other for other in range(num_lanes) if other * num_kv // num_lanes == kv_head]
    queries = _even(group, sharing.index(lane), len(sharing))
    return queries.moved(kv_head * group), Span(kv_head, kv_head + 1)


def _share(size: int, lane: int, num_lanes: int) -> Span:
    """A lane's share, in the largest unit in which every lane gets one."""
    unit = next(unit for unit in UNITS if (size % unit == 0 and size // unit >= num_lanes) or unit == 1)
    return _even(size // unit, lane, num_lanes).times(unit)


def _even(size: int, index: int, count: int) -> Span:
    """The shares differ by one at most, the larger ones first."""
    least, larger = divmod(size, count)
    first = index * least + min(index, larger)
    return Span(first, first + least + (index < larger))


def _stages(whole: ModelConfig, num_stages: int) -> list[Span]:
    """Consecutive layers such that the costliest stage costs least; the head counts for the first stage.

    A layer costs its weights: a decode step reads them, and each token of a prompt is multiplied by them. So
    does the head; looking an embedding up costs nothing. Of equal choices the one with most layers first.
    """
    num_layers = whole.num_layers
    if num_stages == 1:
        return [Span(0, num_layers)]
    layer, head = _layer_weights(whole), whole.vocab_size * whole.hidden_size

    def costliest(num_first: int) -> int:
        most_after = -(-(num_layers - num_first) // (num_stages - 1))
        return max(num_first * layer + head, most_after * layer)

    num_first = min(range(num_layers - num_stages + 1, 0, -1), key=costliest)
    after = [_even(num_layers - num_first, index, num_stages - 1) for index in range(num_stages - 1)]
    return [Span(0, num_first), *(span.moved(num_first) for span in after)]


def _layer_weights(whole: ModelConfig) -> int:
    mixed = whole.num_heads * whole.head_dim
    qkv = mixed + 2 * whole.num_kv_heads * whole.head_dim
    return whole.hidden_size * (qkv + mixed + 3 * whole.intermediate_size)
