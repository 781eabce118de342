"""Incremental text: final when it comes, whole at the end, and never a broken character on the way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from router.text.detokenizer import Detokenizer
from router.text.tokenizer import ModelText
from tests.router.cards import sentencepiece_tokenizer

TEXTS = [
    "Hello, world!",
    "日本語のテキストと中文和한국어",
    "👩\u200d👩\u200d👧\u200d👦 family, 🏳\ufe0f\u200d🌈 flag, 🇫🇷 and 👍🏽",
    "e\u0301 o\u0308 combining, \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd",
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "  leading and trailing  ",
    "\n\n\tcode:\n    return x\n",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 🧬",
]


def feed_all(detokenizer: Detokenizer, chunks: list[list[int]]) -> str:
    return "".join([detokenizer.feed(chunk) for chunk in chunks]) + detokenizer.flush()


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: ModelText) -> Tokenizer:
    return Tokenizer.from_str(smollm2.card.tokenizer_json.decode())


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["smollm2", "llama"])
def test_each_piece_is_final_and_no_character_is_broken(
    request: pytest.FixtureRequest, name: str, text: str
) -> None:
    model: ModelText = request.getfixturevalue(name)
    token_ids = model.encode(text)
    detokenizer = model.detokenizer()
    shown = ""
    for token_id in token_ids:
        shown += detokenizer.feed([token_id])
        assert text.startswith(shown)
    assert not detokenizer.is_amid_character
    assert shown + detokenizer.flush() == text == model.decode(token_ids)


@given(data=st.data())
def test_byte_level_text_is_that_of_the_tokenizer_for_any_tokens_in_any_chunks(
    smollm2: ModelText, smollm2_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    # Ids from 17 to 272 are single bytes, so broken characters of every kind come up.
    token_id = st.one_of(st.integers(0, 49151), st.integers(17, 272))
    chunks = data.draw(st.lists(st.lists(token_id, max_size=4), max_size=10))
    token_ids = [token_id for chunk in chunks for token_id in chunk]
    whole = smollm2.decode(token_ids)
    assert feed_all(smollm2.detokenizer(), chunks) == whole
    assert whole == smollm2_tokenizer.decode(token_ids, skip_special_tokens=True)


@given(text=st.text(max_size=30), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_sentencepiece_text_is_that_of_the_tokenizer_in_any_chunks(
    llama: ModelText, text: str, cuts: list[int]
) -> None:
    token_ids = llama.encode(text)
    edges = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]
    chunks = [token_ids[start:end] for start, end in pairwise(edges)]
    whole = feed_all(llama.detokenizer(), chunks)
    assert whole == llama.decode(token_ids) == sentencepiece_tokenizer().decode(token_ids)


def test_bytes_that_make_no_character_come_out_as_replacements_at_the_end_or_when_they_are_sure(
    llama: ModelText,
) -> None:
    euro = [3 + byte for byte in "€".encode()]
    detokenizer = llama.detokenizer()
    assert detokenizer.feed(euro[:2]) == ""
    assert detokenizer.is_amid_character
    assert detokenizer.flush() == "\ufffd"
    assert llama.decode([*euro[:2], *euro]) == "\ufffd€"


def test_a_completion_goes_on_from_its_prompt_with_the_space_that_a_new_text_would_lose(
    llama: ModelText,
) -> None:
    prompt, output = llama.encode("hello"), llama.encode("world")[1:]
    assert llama.decode(output) == "world"
    assert llama.decode(output, continues=True) == " world"
    assert llama.decode(prompt + output) == llama.decode(prompt) + llama.decode(output, continues=True)


def test_special_tokens_have_text_only_when_asked_for(smollm2: ModelText) -> None:
    token_ids = smollm2.encode("<|im_start|>user\nHi<|im_end|>")
    assert smollm2.decode(token_ids) == "user\nHi"
    assert smollm2.decode(token_ids, skip_special_tokens=False) == "<|im_start|>user\nHi<|im_end|>"


def test_ids_past_the_vocabulary_have_no_text(smollm2: ModelText) -> None:
    assert smollm2.decode([10_000_000, -1]) == ""
