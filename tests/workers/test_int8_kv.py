"""A KV cache of 8 bits holds nearly twice the tokens and costs next to nothing in what the model says."""

from __future__ import annotations

import math
from pydoc_data import topics

import pytest
from tokenizers import Tokenizer

from tests.workers.driver import Driver
from workers.config import EngineConfig
from workers.engine import Engine
from workers.errors import ConfigError
from workers.load.model import LoadedModel, load_model
from workers.model.native import library
from workers.sampling.params import SamplingParams

PAGES = ("execmodel", "import", "specialnames", "typesseq")  # of the reference that Python carries
NUM_TOKENS = 1500
MAX_PERPLEXITY_RATIO = 1.005
MIN_TOKENS_RATIO = 1.9

needs_kernels = pytest.mark.skipif(
    library.load() is None, reason="this CPU or machine cannot have the kernels"
)


def perplexity(driver: Driver, prompts: list[list[int]]) -> float:
    params = SamplingParams(max_tokens=1, temperature=0.0, num_prompt_logprobs=0)
    logprobs: list[float] = []
    for number, prompt in enumerate(prompts):
        found = driver.generate(prompt, params, str(number)).prompt_logprobs
        assert found is not None
        logprobs += [entry.logprob for entry in found if entry.logprob is not None]
    assert len(logprobs) == sum(len(prompt) - 1 for prompt in prompts)
    return math.exp(-sum(logprobs) / len(logprobs))


@needs_kernels
def test_perplexity_stays_within_half_a_percent(smollm2: LoadedModel) -> None:
    tokenizer = Tokenizer.from_buffer(smollm2.card.tokenizer_json)
    prompts = [
        tokenizer.encode(topics.topics[page], add_special_tokens=False).ids[:NUM_TOKENS] for page in PAGES
    ]
    whole = perplexity(Driver(smollm2), prompts)
    assert perplexity(Driver(smollm2, kv_dtype="int8"), prompts) <= MAX_PERPLEXITY_RATIO * whole


@needs_kernels
def test_it_holds_nearly_twice_the_tokens(smollm2: LoadedModel) -> None:
    plain, int8 = (
        Driver(smollm2, kv_dtype=kv_dtype).engine.load.num_free_blocks for kv_dtype in ("auto", "int8")
    )
    assert int8 >= MIN_TOKENS_RATIO * plain


def test_without_the_kernels_there_is_none() -> None:
    model = load_model("builtin:smollm2-135m", "bf16", name="x", kernels="torch")
    with pytest.raises(ConfigError, match=r"kv\.dtype int8 needs the native kernels"):
        Engine(model, EngineConfig(kv_dtype="int8"), b"key")
