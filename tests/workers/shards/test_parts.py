"""How a model is cut: everything is somewhere, nothing is uneven by more than it must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.errors import ConfigError
from workers.model.config import LayerConfig, ModelConfig, Rope
from workers.model.parts import Cut, Part, cut


def model(
    num_kv_heads: int, group: int, num_layers: int, inner: int = 1536, vocab: int = 49152
) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=vocab,
        hidden_size=576,
        intermediate_size=inner,
        num_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=64,
        layers=(LayerConfig(Rope((1.0,))),) * num_layers,
        norm_eps=1e-5,
        max_context_tokens=512,
        attention_scale=0.125,
    )


SMOLLM2 = model(num_kv_heads=3, group=3, num_layers=30)


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    config = model(
        num_kv_heads=draw(st.integers(1, 8)),
        group=draw(st.integers(1, 8)),
        num_layers=draw(st.integers(1, 40)),
        inner=draw(st.integers(64, 4096)),
        vocab=draw(st.integers(64, 50_000)),
    )
    tensor = draw(st.integers(1, min(config.num_heads, 16)))
    return cut(config, tensor, draw(st.integers(1, min(config.num_layers, 8))))


def covered(spans: list[tuple[int, int]]) -> list[int]:
    return [number for first, last in spans for number in range(first, last)]


@given(cuts())
def test_every_head_column_token_and_layer_is_somewhere_exactly_once(whole: Cut) -> None:
    config = whole.whole
    stage = whole.parts[: whole.tensor]
    for name, size in (
        ("q_heads", config.num_heads),
        ("inner", config.intermediate_size),
        ("vocabulary", config.vocab_size),
    ):
        spans = [(getattr(part, name).first, getattr(part, name).last) for part in stage]
        assert covered(spans) == list(range(size)), name
    layers = [(part.layers.first, part.layers.last) for part in whole.parts[:: whole.tensor]]
    assert covered(layers) == list(range(config.num_layers))


@given(cuts())
def test_a_lane_has_the_kv_heads_that_its_query_heads_attend_to_and_as_many_queries_for_each(
    whole: Cut,
) -> None:
    group = whole.whole.num_heads // whole.whole.num_kv_heads
    for part in whole.parts:
        needed = {head // group for head in range(part.q_heads.first, part.q_heads.last)}
        assert needed == set(range(part.kv_heads.first, part.kv_heads.last))
        assert part.q_heads.size % part.kv_heads.size == 0
        assert part.q_heads.size > 0
        assert part.config.num_heads == part.q_heads.size


def stages_of(pipeline: int) -> list[int]:
    return [part.layers.size for part in cut(SMOLLM2, 1, pipeline).parts]


def test_the_head_counts_as_layers_of_the_first_stage() -> None:
    """SmolLM2's head weighs as much as eight of its layers."""
    assert stages_of(2) == [11, 19]
    assert stages_of(3) == [5, 13, 12]


@given(cuts())
def test_no_stage_could_be_lighter_by_giving_a_layer_to_another(whole: Cut) -> None:
    config = whole.whole
    layer = config.hidden_size * (
        2 * config.num_heads * 64 + 2 * config.num_kv_heads * 64 + 3 * config.intermediate_size
    )
    head = config.vocab_size * config.hidden_size
    sizes = [part.layers.size for part in whole.parts[:: whole.tensor]]
    costs = [size * layer + (head if stage == 0 else 0) for stage, size in enumerate(sizes)]
    heaviest = max(range(len(costs)), key=costs.__getitem__)
    if sizes[heaviest] > 1:
        others = [cost + layer for stage, cost in enumerate(costs) if stage != heaviest]
        assert all(other >= costs[heaviest] for other in others)


def heads(tensor: int) -> list[tuple[int, int]]:
    def sizes(part: Part) -> tuple[int, int]:
        return part.q_heads.size, part.kv_heads.size

    return [sizes(part) for part in cut(SMOLLM2, tensor).parts]


def test_nine_heads_over_three_kv_heads() -> None:
    assert heads(2) == [(6, 2), (3, 1)]
    assert heads(3) == [(3, 1)] * 3
    assert heads(4) == [(2, 1), (1, 1), (3, 1), (3, 1)]
    assert heads(9) == [(1, 1)] * 9


@pytest.mark.parametrize(
    ("tensor", "pipeline", "equation"),
    [
        (10, 1, r"parallel\.tensor = 10 > 9 query heads"),
        (1, 31, r"parallel\.pipeline = 31 > 30 layers"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_equation(tensor: int, pipeline: int, equation: str) -> None:
    with pytest.raises(ConfigError, match=equation):
        cut(SMOLLM2, tensor, pipeline)
