"""The text side of two models, built once: the embedded one, and a small sentencepiece-like one."""

from __future__ import annotations

import pytest

from router.text.tokenizer import ModelText
from tests.router.cards import embedded_card, sentencepiece_card


@pytest.fixture(scope="session")
def smollm2() -> ModelText:
    return ModelText(embedded_card())


@pytest.fixture(scope="session")
def llama() -> ModelText:
    return ModelText(sentencepiece_card())
