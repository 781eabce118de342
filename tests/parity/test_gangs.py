"""A model in parts says what the whole model says, however it is cut and whatever its engine is doing.

Ranks are threads here, with real links, shared memory and process groups; `tests/e2e/test_gangs.py` has them as
processes under Ray. In fp32 another order of sums does not change a token.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tests.parity.families import FAMILIES, VOCAB, save, tiny_model
from tests.workers.driver import Driver, Output
from tests.workers.shards.gangs import gang
from workers.config import Collectives, KvDtype
from workers.errors import ConfigError
from workers.load.model import LoadedModel, load_model
from workers.load.sources import resolve
from workers.model.native import library
from workers.sampling.params import SamplingParams
from workers.shards.leader import GangDecoder

DEGREES = [degrees for degrees in itertools.product((1, 2, 3, 4), (1, 2, 3)) if degrees != (1, 1)]
NUM_OUTPUT = 20
BLOCK_TOKENS = 16
NUM_BLOCKS = 16  # few enough that sequences are preempted
GREEDY = SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(
    max_tokens=NUM_OUTPUT, temperature=0.8, top_p=0.9, top_k=40, seed=11, num_logprobs=2, ignore_eos=True
)
SHORT = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
SCORED = SamplingParams(max_tokens=1, temperature=0.0, num_prompt_logprobs=1)


@dataclass
class Story:
    """What an engine went through, so that a test can tell that it did."""

    outputs: dict[tuple[str, int], Output]
    num_preemptions: int
    num_accepted: int


def play(model: LoadedModel, kv_memory_bytes: int) -> Story:
    """Chunked prompts, mixed batches, drafts, prefix hits, preemption, greedy and seeded, prompt scores."""
    driver = Driver(
        model,
        kv_memory_bytes=kv_memory_bytes,
        threads=1,
        max_step_tokens=32,
        speculation="ngram",
        target_step_s=10.0,  # so that how steps are made up does not hang on the time that they take
    )
    prompt = torch.randint(3, VOCAB, (75,), generator=torch.Generator().manual_seed(5)).tolist()
    for round_ in range(20):  # short answers teach the estimator to admit more than the pool can hold
        driver.generate(prompt[:20], SHORT, f"short {round_}")
    driver.submit("greedy", prompt, GREEDY)
    driver.submit("seeded", prompt[10:70], SEEDED)
    driver.submit("copying", (prompt[:12] * 6)[:70], GREEDY)
    driver.run()
    driver.generate(prompt, SEEDED, "hit")
    driver.generate(prompt[5:60], SCORED, "scored")
    return Story(driver.outputs, driver.num_preemptions, driver.num_accepted)


def assert_same_story(actual: Story, expected: Story) -> None:
    for key, output in expected.outputs.items():
        found = actual.outputs[key]
        assert (found.token_ids, found.finish) == (output.token_ids, output.finish), key
        assert found.num_cached_tokens == output.num_cached_tokens, key
        for ours, theirs in zip(scores(found), scores(output), strict=True):
            assert ours == pytest.approx(theirs, abs=1e-3)
    assert actual.num_preemptions == expected.num_preemptions


def scores(output: Output) -> list[float]:
    entries = [*output.logprobs, *(output.prompt_logprobs or [])]
    return [entry.logprob for entry in entries if entry.logprob is not None]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, Any]:
    """The model's folder, memory for NUM_BLOCKS blocks of it, and the story of the whole model."""
    folder: Path = tmp_path_factory.mktemp("model")
    save(tiny_model(request.param), folder)
    model = load_model(str(folder), "fp32", name="tiny")
    config = model.config
    block_bytes = 2 * 4 * BLOCK_TOKENS * config.num_kv_heads * config.head_dim * config.num_layers
    kv_memory_bytes = NUM_BLOCKS * block_bytes
    story = play(model, kv_memory_bytes)
    assert story.num_preemptions > 0
    assert story.outputs["hit", 0].num_cached_tokens
    return folder, kv_memory_bytes, story


@pytest.mark.parametrize(("tensor", "pipeline"), DEGREES)
def test_every_family_in_parts_says_what_it_says_whole(
    family: tuple[Path, int, Story], tensor: int, pipeline: int
) -> None:
    folder, kv_memory_bytes, expected = family
    # With more lanes than KV heads some heads are held more than once: memory for as many blocks is more.
    copies = max(tensor, 2) / 2
    with gang(str(folder), weights="fp32", tensor=tensor, pipeline=pipeline) as model:
        assert_same_story(play(model, int(kv_memory_bytes * copies)), expected)


@pytest.mark.parametrize("degrees", [(2, 1), (3, 1), (1, 3), (4, 2)])
def test_torch_distributed_carries_what_shared_memory_carries(
    tmp_path: Path, degrees: tuple[int, int]
) -> None:
    save(tiny_model("qwen3"), tmp_path)
    expected = Driver(load_model(str(tmp_path), "bf16", name="tiny", kernels="torch"), threads=1)
    prompt = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    logprobs = []
    ways: tuple[Collectives, ...] = ("auto", "torch")
    for collectives in ways:
        with gang(
            str(tmp_path),
            weights="bf16",
            kernels="torch",
            tensor=degrees[0],
            pipeline=degrees[1],
            collectives=collectives,
        ) as model:
            driver = Driver(model, threads=1)
            logprobs.append(driver.generate(prompt, SEEDED).logprobs)
            assert all(seconds > 0 for seconds in model.decoder.waited_s.values())  # type: ignore[attr-defined]
    assert logprobs[0] == logprobs[1]  # the same sums in the same order, to the last bit
    whole = expected.generate(prompt, SEEDED).logprobs
    assert logprobs[0][0].logprob == pytest.approx(whole[0].logprob, abs=0.2)


def test_smollm2_with_nine_heads_on_two_to_four_lanes(tmp_path: Path) -> None:
    prompts = [[28120, 905, 253, 655], [1038, 100, 4, 77, 9000, 12, 5]]
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)

    def answers(model: LoadedModel) -> list[list[int]]:
        driver = Driver(model, threads=1)
        for index, prompt in enumerate(prompts):
            driver.submit(str(index), prompt, params)
        driver.run()
        return [driver.outputs[str(index), 0].token_ids for index in range(len(prompts))]

    builtin = "builtin:smollm2-135m"
    expected = answers(load_model(builtin, "fp32", name="smollm2"))
    path = resolve(builtin)
    names = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    loaded = AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32)
    loaded.config.__dict__.pop("quantization_config", None)
    plain = LlamaForCausalLM(loaded.config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(**names).save_pretrained(tmp_path)
    for tensor, pipeline in ((2, 1), (3, 2), (4, 1), (1, 3), (2, 2), (4, 3)):
        # One of them reads its parts from the GGUF file's quantised rows and columns.
        source = builtin if (tensor, pipeline) == (2, 2) else str(tmp_path)
        with gang(source, weights="fp32", tensor=tensor, pipeline=pipeline) as model:
            assert answers(model) == expected, (tensor, pipeline)


@pytest.mark.skipif(library.load() is None, reason="this CPU or machine cannot have the kernels")
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_the_native_decoder_in_parts_is_as_near_to_fp32_as_it_is_whole(
    tmp_path: Path, kv_dtype: KvDtype
) -> None:
    save(tiny_model("qwen2", head_dim=32), tmp_path)
    source = str(tmp_path)
    prompt = torch.randint(3, VOCAB, (70,), generator=torch.Generator().manual_seed(4)).tolist()
    params = SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0, ignore_eos=True, num_prompt_logprobs=0)

    def prompt_scores(model: LoadedModel, kv_dtype: KvDtype) -> torch.Tensor:
        driver = Driver(model, threads=1, kv_dtype=kv_dtype, max_step_tokens=48)
        output = driver.generate(prompt, params)
        assert output.prompt_logprobs is not None
        return torch.tensor([entry.logprob for entry in output.prompt_logprobs if entry.logprob is not None])

    exact = prompt_scores(load_model(source, "fp32", name="tiny"), "auto")
    whole = prompt_scores(load_model(source, "bf16", name="tiny"), kv_dtype)
    for tensor, pipeline in [(2, 1), (3, 1), (4, 2), (1, 2)]:
        with gang(source, weights="bf16", tensor=tensor, pipeline=pipeline) as model:
            assert isinstance(model.decoder, GangDecoder)
            assert model.decoder.kernels == "NativeDecoder"
            parts = prompt_scores(model, kv_dtype)
        if tensor == 1:  # stages do what the whole does, to the last bit
            assert torch.equal(parts, whole)
        error, bound = (parts - exact).square().mean().sqrt(), (whole - exact).square().mean().sqrt()
        assert error < 1.5 * bound + 1e-2, (tensor, pipeline)


@pytest.mark.parametrize(
    ("engine", "equation"),
    [
        ({"tensor": 7}, r"parallel\.tensor = 7 > 6 query heads of the model; choose 6 or less"),
        ({"pipeline": 4}, r"parallel\.pipeline = 4 > 3 layers of the model; choose 3 or less"),
    ],
)
def test_degrees_beyond_the_model_are_refused_with_the_equation(
    tmp_path: Path, engine: dict[str, int], equation: str
) -> None:
    save(tiny_model("llama"), tmp_path)
    with pytest.raises(ConfigError, match=equation), gang(str(tmp_path), weights="fp32", **engine):
        pass
