"""Workloads are the same for the same seed, and as long as was asked for by the server's own count."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path

import pytest

from deploy.bench.corpus import read_conversations
from deploy.bench.words import TextScale
from deploy.bench.workload import SHAREGPT_INPUT_TOKENS, SHAREGPT_OUTPUT_TOKENS, Corpus, Synthetic
from workers.errors import ConfigError


def test_the_scale_is_what_a_server_counted() -> None:
    scale = TextScale.fitted((16, 46), (144, 206))  # 1.25 tokens a word and a template of 26
    assert (scale.overhead_tokens, scale.tokens_per_word) == (26.0, 1.25)
    assert scale.num_words(126) == 80
    assert scale.num_words(3) == 1  # a prompt has at least one word


def test_random_text_has_one_length_and_shares_no_beginnings() -> None:
    workload = Synthetic("random", 60, 9, TextScale(10.0, 1.0), seed=1)
    requests = list(itertools.islice(workload, 50))
    assert {len(request.turns[0].split()) for request in requests} == {50}
    assert {request.max_tokens for request in requests} == {9}
    assert len({tuple(request.turns[0].split()[:4]) for request in requests}) == 50
    assert requests == list(itertools.islice(workload, 50))
    assert requests != list(itertools.islice(Synthetic("random", 60, 9, TextScale(10.0, 1.0), seed=2), 50))


def test_sharegpt_text_is_spread_around_the_means() -> None:
    workload = Synthetic("sharegpt", SHAREGPT_INPUT_TOKENS, SHAREGPT_OUTPUT_TOKENS, TextScale(), seed=0)
    requests = list(itertools.islice(workload, 2000))
    inputs = [len(request.turns[0].split()) for request in requests]
    outputs = [request.max_tokens for request in requests]
    assert statistics.mean(inputs) == pytest.approx(SHAREGPT_INPUT_TOKENS, rel=0.15)
    assert statistics.mean(outputs) == pytest.approx(SHAREGPT_OUTPUT_TOKENS, rel=0.15)
    assert statistics.median(inputs) < 0.75 * statistics.mean(inputs)  # many are short, few are long
    assert min(inputs + outputs) >= 4
    assert max(inputs + outputs) <= 1024
    assert all(request.turns[0][0].isupper() and request.turns[0][-1] in ".?!" for request in requests)


@pytest.mark.parametrize(
    ("text", "conversations"),
    [
        ('{"question_id": 1, "turns": ["one", "two"]}\n{"turns": ["three"]}', [("one", "two"), ("three",)]),
        (
            json.dumps(
                [{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]}]
            ),
            [("hi",)],
        ),
        ("First one,\non two lines.\n\n\nSecond.\n", [("First one,\non two lines.",), ("Second.",)]),
    ],
    ids=["MT-bench", "ShareGPT", "paragraphs"],
)
def test_prompts_are_read_from_every_kind_of_file(
    tmp_path: Path, text: str, conversations: list[tuple[str, ...]]
) -> None:
    path = tmp_path / "prompts"
    path.write_text(text)
    assert read_conversations(path) == conversations


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  \n", "has no prompts"),
        ('{"turns": ["a"]}\n{"timestamp": 3}', "line 2 is no MT-bench question.*--trace"),
        ('[{"messages": []}]', "item 0 is no ShareGPT conversation"),
        ("[1,", "is not JSON"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_conversations(path)


def test_a_corpus_begins_again_at_its_end() -> None:
    requests = itertools.islice(Corpus("file", [("a",), ("b", "c")], 5), 3)
    assert [request.turns for request in requests] == [("a",), ("b", "c"), ("a",)]
