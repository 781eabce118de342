"""What a request gets depends on the request alone: not on its neighbours, on how its prompt was cut, on
the prefix cache, on preemption or on n. Token ids and log-probabilities are compared bit by bit."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from tokenizers import Tokenizer

from tests.workers.driver import Driver, Output
from workers.config import KvDtype
from workers.load.model import LoadedModel, load_model
from workers.model.native import library
from workers.sampling.params import SamplingParams

TEXT = (
    "A headrace is the channel that brings the water to the wheel. The miller opens the sluice in the morning, "
    "and the water runs along the stone channel, over the wheel, and back to the river below the mill. In dry "
    "summers there is little water, and the wheel turns slowly; in spring, when the snow melts, there is more "
    "than the channel can carry. Explain in simple words how the miller keeps the wheel at an even speed, what "
    "happens to the water that is not needed, and why the channel is longer than it seems to need to be."
)
NUM_OUTPUT = 40

PARAMS = {
    "greedy": SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0, ignore_eos=True),
    "seeded sampling": SamplingParams(
        max_tokens=NUM_OUTPUT, temperature=0.9, top_p=0.95, top_k=50, seed=1234, ignore_eos=True
    ),
    "penalties": SamplingParams(
        max_tokens=NUM_OUTPUT,
        temperature=0.7,
        seed=7,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        ignore_eos=True,
    ),
    "logprobs": SamplingParams(
        max_tokens=NUM_OUTPUT, temperature=1.0, min_p=0.02, seed=99, num_logprobs=5, ignore_eos=True
    ),
}


@dataclass(frozen=True)
class Setup:
    """A model and the type of its KV cache."""

    model: LoadedModel
    kv_dtype: KvDtype

    @property
    def block_bytes(self) -> int:
        config = self.model.config
        head_bytes = 2 * config.head_dim if self.kv_dtype == "auto" else config.head_dim + 2
        return 2 * config.num_layers * config.num_kv_heads * 16 * head_bytes

    def driver(self, **limits: int) -> Driver:
        return Driver(self.model, kv_dtype=self.kv_dtype, **limits)


@pytest.fixture(scope="module", params=["bf16", "int8", "int4", "bf16 with int8 KV"])
def setup(request: pytest.FixtureRequest, smollm2: LoadedModel) -> Setup:
    if request.param != "bf16" and library.load() is None:
        pytest.skip("this CPU or machine cannot have so few bits")
    weights, _, kv = request.param.partition(" with ")
    model = smollm2 if weights == "bf16" else load_model("builtin:smollm2-135m", weights, name="smollm2-135m")
    return Setup(model, "int8" if kv else "auto")


@pytest.fixture(scope="module")
def prompt(smollm2: LoadedModel) -> list[int]:
    return Tokenizer.from_buffer(smollm2.card.tokenizer_json).encode(TEXT, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def baselines(setup: Setup, prompt: list[int]) -> dict[str, Output]:
    """Each parameter set alone on a fresh engine."""
    return {name: setup.driver().generate(prompt, params) for name, params in PARAMS.items()}


def assert_same(actual: Output, expected: Output) -> None:
    assert len(expected.token_ids) == NUM_OUTPUT
    assert actual.token_ids == expected.token_ids
    assert actual.logprobs == expected.logprobs


@pytest.mark.parametrize("name", PARAMS)
def test_a_mixed_batch_of_eight_changes_nothing(
    setup: Setup, prompt: list[int], baselines: dict[str, Output], name: str
) -> None:
    driver = setup.driver()
    others = list(PARAMS.values())
    for lane in range(7):
        driver.submit(f"other {lane}", prompt[lane : 40 + 11 * lane], others[lane % 4])
        driver.step()
    driver.submit("r", prompt, PARAMS[name])
    driver.run()
    assert_same(driver.outputs["r", 0], baselines[name])


@pytest.mark.parametrize("name", PARAMS)
def test_a_prompt_cut_into_chunks_of_32_changes_nothing(
    setup: Setup, prompt: list[int], baselines: dict[str, Output], name: str
) -> None:
    driver = setup.driver(max_step_tokens=32)
    assert_same(driver.generate(prompt, PARAMS[name]), baselines[name])


@pytest.mark.parametrize("name", PARAMS)
def test_a_prefix_hit_changes_nothing(
    setup: Setup, prompt: list[int], baselines: dict[str, Output], name: str
) -> None:
    driver = setup.driver()
    driver.generate(prompt, PARAMS["greedy"], "first")
    again = driver.generate(prompt, PARAMS[name], "again")
    assert again.num_cached_tokens is not None
    assert again.num_cached_tokens >= len(prompt) - 32
    assert_same(again, baselines[name])


@pytest.mark.parametrize("name", PARAMS)
def test_preemption_and_resumption_change_nothing(
    setup: Setup, prompt: list[int], baselines: dict[str, Output], name: str
) -> None:
    driver = setup.driver(kv_memory_bytes=20 * setup.block_bytes)
    for round_ in range(24):  # short answers teach the estimator to admit more than the pool can hold
        driver.generate(
            prompt[:20], msgspec.structs.replace(PARAMS["greedy"], max_tokens=2), f"short {round_}"
        )
    driver.submit("older", prompt[: len(prompt) - 5], PARAMS["greedy"], salt=b"another tenant")
    driver.submit("r", prompt, PARAMS[name])
    driver.run()
    assert driver.num_preemptions > 0
    assert_same(driver.outputs["r", 0], baselines[name])


@pytest.mark.parametrize("name", PARAMS)
def test_sequence_i_of_n_is_the_request_alone_with_seed_plus_i(
    setup: Setup, prompt: list[int], baselines: dict[str, Output], name: str
) -> None:
    params = PARAMS[name]
    driver = setup.driver()
    driver.submit("r", prompt, msgspec.structs.replace(params, n=2))
    driver.run()
    assert_same(driver.outputs["r", 0], baselines[name])
    alone = setup.driver().generate(prompt, msgspec.structs.replace(params, seed=params.seed + 1))
    assert_same(driver.outputs["r", 1], alone)
