"""What a grammar promises holds for every output, whatever else happens in the engine, and costs nobody else
anything: rows without one get the same bits as ever."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.workers.driver import Driver, Output
from tests.workers.schemas import random_schema
from workers.errors import GrammarError
from workers.load.model import LoadedModel
from workers.sampling.grammar import LlguidanceCompiler, new_bits
from workers.sampling.params import GrammarSpec, SamplingParams

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TEXT = (
    'Write the person as JSON, like {"name": "Ada Lovelace", "age": 36, "tags": ["maths", "engines"]} and '
    '{"name": "Alan Turing", "age": 41, "tags": ["maths", "machines"]}. The next person is Grace Hopper. JSON: '
) * 3


def spec(schema: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema))


PARAMS = {
    "greedy": SamplingParams(max_tokens=120, temperature=0.0, grammar=spec(SCHEMA)),
    "seeded": SamplingParams(max_tokens=120, temperature=1.0, seed=3, grammar=spec(SCHEMA)),
    "filters and penalties": SamplingParams(
        max_tokens=120,
        temperature=0.8,
        top_p=0.9,
        top_k=40,
        seed=4,
        frequency_penalty=0.3,
        grammar=spec(SCHEMA),
    ),
    "logprobs": SamplingParams(max_tokens=120, temperature=0.7, seed=5, num_logprobs=3, grammar=spec(SCHEMA)),
}
FREE = SamplingParams(max_tokens=40, temperature=0.9, seed=9, ignore_eos=True)


@pytest.fixture(scope="module")
def tokenizer(smollm2: LoadedModel) -> Tokenizer:
    return Tokenizer.from_buffer(smollm2.card.tokenizer_json)


@pytest.fixture(scope="module")
def compiler(smollm2: LoadedModel) -> LlguidanceCompiler:
    card = smollm2.card
    return LlguidanceCompiler(card.tokenizer_json, card.vocab_size, card.eos_ids)


@pytest.fixture(scope="module")
def prompt(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(TEXT, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def baselines(smollm2: LoadedModel, prompt: list[int]) -> dict[str, Output]:
    return {name: Driver(smollm2).generate(prompt, params) for name, params in PARAMS.items()}


def text_of(tokenizer: Tokenizer, output: Output) -> str:
    return tokenizer.decode(output.token_ids, skip_special_tokens=True)


def assert_same(actual: Output, expected: Output) -> None:
    assert expected.finish == "stop"
    assert actual.token_ids == expected.token_ids
    assert actual.logprobs == expected.logprobs


@pytest.mark.parametrize("name", PARAMS)
def test_the_output_is_valid_and_ends_with_the_grammar(
    tokenizer: Tokenizer, baselines: dict[str, Output], name: str
) -> None:
    jsonschema.validate(json.loads(text_of(tokenizer, baselines[name])), SCHEMA)


@pytest.mark.parametrize("name", PARAMS)
def test_neighbours_chunks_and_drafts_change_nothing(
    smollm2: LoadedModel, prompt: list[int], baselines: dict[str, Output], name: str
) -> None:
    driver = Driver(smollm2, speculation="ngram", max_step_tokens=32)
    driver.submit("free", prompt[:50], FREE)
    driver.submit("other", prompt[20:], PARAMS["seeded"])
    driver.step()
    driver.submit("r", prompt, PARAMS[name])
    driver.run()
    assert_same(driver.outputs["r", 0], baselines[name])
    assert driver.outputs["free", 0].token_ids == Driver(smollm2).generate(prompt[:50], FREE).token_ids
    alone = Driver(smollm2, speculation="ngram")
    assert_same(alone.generate(prompt, PARAMS[name]), baselines[name])
    if name in ("greedy", "seeded"):
        assert alone.num_accepted > 0


@pytest.mark.parametrize("name", ["greedy", "logprobs"])
def test_preemption_changes_nothing(
    smollm2: LoadedModel, prompt: list[int], baselines: dict[str, Output], name: str
) -> None:
    bytes_per_block = 2 * 30 * 3 * 64 * 2 * 16
    driver = Driver(smollm2, kv_memory_bytes=(2 * len(prompt) // 16 + 3) * bytes_per_block)
    for round_ in range(24):  # short answers teach the estimator to admit more than the pool can hold
        driver.generate(prompt[:20], msgspec.structs.replace(FREE, max_tokens=2), f"short {round_}")
    driver.submit("older", prompt, msgspec.structs.replace(FREE, max_tokens=64), salt=b"another tenant")
    driver.submit("r", prompt, PARAMS[name])
    driver.run()
    assert driver.num_preemptions > 0
    assert_same(driver.outputs["r", 0], baselines[name])


def test_each_of_n_sequences_follows_the_grammar_by_itself(
    smollm2: LoadedModel, tokenizer: Tokenizer, prompt: list[int], baselines: dict[str, Output]
) -> None:
    driver = Driver(smollm2)
    driver.submit("r", prompt, msgspec.structs.replace(PARAMS["seeded"], n=4))
    driver.run()
    assert_same(driver.outputs["r", 0], baselines["seeded"])
    for index in range(4):
        jsonschema.validate(json.loads(text_of(tokenizer, driver.outputs["r", index])), SCHEMA)
    assert len({tuple(driver.outputs["r", index].token_ids) for index in range(4)}) > 1


def test_the_outputs_of_300_random_schemas_validate(smollm2: LoadedModel, tokenizer: Tokenizer) -> None:
    rng = random.Random(20)
    schemas = [random_schema(rng) for _ in range(300)]
    head = tokenizer.encode("Some JSON: ", add_special_tokens=False).ids
    driver = Driver(smollm2, max_sequences=48, kv_memory_bytes=256 << 20)
    for number, schema in enumerate(schemas):
        params = SamplingParams(max_tokens=400, temperature=0.9, seed=number, grammar=spec(schema))
        driver.submit(str(number), head, params)
    driver.run(limit=20_000)
    num_cut = 0
    for number, schema in enumerate(schemas):
        output = driver.outputs[str(number), 0]
        if output.finish == "length":
            num_cut += 1
            continue
        assert output.finish == "stop", output.error
        jsonschema.validate(json.loads(text_of(tokenizer, output)), schema)
    assert num_cut <= 30  # the others had come to their end


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (GrammarSpec("regex", r"[0-9]{3}-[a-f]{2}"), r"[0-9]{3}-[a-f]{2}"),
        (GrammarSpec("grammar", 'start: "the " animal\nanimal: "cat" | "dog"\n'), "the (cat|dog)"),
        (GrammarSpec("grammar", 'root ::= "yes" | "no"\n'), "yes|no"),
    ],
)
def test_expressions_and_grammars_of_both_notations(
    smollm2: LoadedModel, tokenizer: Tokenizer, prompt: list[int], grammar: GrammarSpec, pattern: str
) -> None:
    output = Driver(smollm2).generate(prompt, SamplingParams(max_tokens=30, temperature=1.5, grammar=grammar))
    assert re.fullmatch(pattern, text_of(tokenizer, output))
    assert output.finish == "stop"


def test_an_output_that_is_cut_is_reported_as_length(smollm2: LoadedModel, prompt: list[int]) -> None:
    params = msgspec.structs.replace(PARAMS["greedy"], max_tokens=5)
    assert Driver(smollm2).generate(prompt, params).finish == "length"


def test_a_grammar_that_grows_too_much_fails_its_own_request_only(
    smollm2: LoadedModel, prompt: list[int], baselines: dict[str, Output]
) -> None:
    driver = Driver(smollm2)
    params = SamplingParams(max_tokens=8, temperature=0.0, grammar=GrammarSpec("regex", "(?s:.*)"))
    driver.submit("bad", prompt, params)
    (grammar,) = driver.engine._grammars.values()
    grammar.accept(smollm2.card.vocab_size - 1)  # whatever comes, one that has gone wrong stays so
    grammar.fault = "the lexer ran out of fuel"  # type: ignore[misc]
    driver.submit("good", prompt, PARAMS["greedy"])
    driver.run()
    assert driver.outputs["bad", 0].finish == "error"
    assert "fuel" in (driver.outputs["bad", 0].error or "")
    assert_same(driver.outputs["good", 0], baselines["greedy"])


@pytest.mark.parametrize(
    "bad",
    [
        GrammarSpec("json_schema", '{"type": "strnig"}'),
        GrammarSpec("json_schema", "not JSON"),
        GrammarSpec("json_schema", '{"type": "array", "uniqueItems": true}'),
        GrammarSpec("json_schema", '{"type": "string", "pattern": "("}'),
        GrammarSpec("regex", "("),
        GrammarSpec("grammar", "start: nowhere"),
    ],
)
def test_what_is_no_grammar_is_refused_with_its_reason(
    compiler: LlguidanceCompiler, bad: GrammarSpec
) -> None:
    with pytest.raises(GrammarError, match=bad.kind):
        compiler.compile(bad)


def test_masks_behind_a_draft_are_those_of_its_tokens(
    compiler: LlguidanceCompiler, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode('{"name": "Ada", "age": 3', add_special_tokens=False).ids
    grammar = compiler.compile(spec(SCHEMA))
    ahead = new_bits(len(ids) + 1, 49152)
    grammar.fill(ahead, ids)
    step_by_step = grammar.fork()
    for place, token_id in enumerate([*ids, 0]):
        row = new_bits(1, 49152)
        step_by_step.fill(row, [])
        assert np.array_equal(row[0], ahead[place])
        assert not row[0, 0] & 0b111, "EOS and other special tokens must wait for the end"
        if place < len(ids):
            step_by_step.accept(token_id)
    wrong = new_bits(3, 49152)
    grammar.fill(wrong, [ids[-1], ids[-1]])
    assert (wrong[1:] == -1).all()
    assert np.array_equal(wrong[0], ahead[0])
