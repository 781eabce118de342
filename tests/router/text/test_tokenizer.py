"""Prompts to tokens: exactly one BOS, the template's text and nothing else."""

from __future__ import annotations

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models

from router.text.tokenizer import ModelText
from tests.router.cards import LLAMA_TEMPLATE, sentencepiece_card, sentencepiece_tokenizer
from workers.errors import ConfigError, InvalidRequest

HELLO = [{"role": "user", "content": "hello"}]


def test_a_plain_prompt_has_one_bos_if_the_model_wants_it(llama: ModelText, smollm2: ModelText) -> None:
    assert llama.encode("hello").count(1) == 1
    assert llama.encode("<s>hello").count(1) == 1
    assert llama.encode("<s><s>hello").count(1) == 1
    assert ModelText(sentencepiece_card(add_bos=False)).encode("hello").count(1) == 0
    assert smollm2.encode("hello") == [28120]


@pytest.mark.parametrize(
    "template", [LLAMA_TEMPLATE, LLAMA_TEMPLATE.removeprefix("{{ bos_token }}"), "<s>" + LLAMA_TEMPLATE]
)
def test_a_conversation_has_one_bos_whatever_its_template_writes(template: str) -> None:
    token_ids = ModelText(sentencepiece_card(template)).encode_chat(HELLO)
    assert token_ids[0] == 1
    assert token_ids.count(1) == 1


def test_a_template_keeps_the_bos_it_writes_though_the_model_adds_none() -> None:
    assert ModelText(sentencepiece_card(add_bos=False)).encode_chat(HELLO)[0] == 1


def test_the_embedded_models_conversation_is_chatml(smollm2: ModelText) -> None:
    token_ids = smollm2.encode_chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    )
    assert smollm2.decode(token_ids, skip_special_tokens=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm2.decode(smollm2.encode_chat(HELLO, add_generation_prompt=False)).endswith("user\nhello\n")


def test_a_model_without_a_template_says_where_to_go() -> None:
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        ModelText(sentencepiece_card(None)).encode_chat(HELLO)


def test_token_bytes_and_text_for_log_probabilities(llama: ModelText, smollm2: ModelText) -> None:
    hello = smollm2.encode(" hello")[0]
    assert (smollm2.token_text(hello), smollm2.token_bytes(hello)) == (" hello", b" hello")
    assert llama.token_bytes(3 + 0x0A) == b"\n"
    assert llama.token_bytes(3 + 0xE2) == b"\xe2"
    assert llama.token_text(3 + 0xE2) == "\ufffd"
    assert llama.token_text(llama.encode("hello")[1]) == " hello"
    assert smollm2.token_text(2) == "<|im_end|>"


def test_every_token_of_the_embedded_model_has_the_bytes_that_its_decoder_gives(smollm2: ModelText) -> None:
    tokenizer = Tokenizer.from_str(smollm2.card.tokenizer_json.decode())
    decoded = tokenizer.decode_batch([[i] for i in range(49152)], skip_special_tokens=False)
    assert decoded == [smollm2.token_text(i) for i in range(49152)]


def test_truncation_and_padding_of_a_tokenizer_file_are_switched_off() -> None:
    tokenizer = sentencepiece_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    model = ModelText(sentencepiece_card(tokenizer=tokenizer))
    assert len(model.encode("a b c d e f g h")) > 4
    assert len(model.encode("a")) < 16


def test_an_unreadable_tokenizer_and_an_unknown_decoder_are_named() -> None:
    with pytest.raises(ConfigError, match="'tiny' cannot be read"):
        ModelText(msgspec.structs.replace(sentencepiece_card(), tokenizer_json=b"{}"))
    tokenizer = Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ConfigError, match="WordPiece"):
        ModelText(sentencepiece_card(tokenizer=tokenizer))


def test_a_tokenizer_without_decoder_joins_its_tokens_by_spaces() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    model = ModelText(
        msgspec.structs.replace(sentencepiece_card(tokenizer=tokenizer), bos_id=None, eos_ids=[])
    )
    assert model.decode([0, 1, 2]) == tokenizer.decode([0, 1, 2]) == "a b c"
