"""The embedded model in fp32 says what transformers says, token for token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.workers.driver import Driver
from workers.load.model import LoadedModel, load_model
from workers.load.sources import resolve
from workers.sampling.params import SamplingParams

NUM_OUTPUT = 64
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by a river,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "<|im_start|>user\nWhat is a water wheel?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nCount from one to ten.<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 4,",
    "The three primary colours are",
    "In 1969, astronauts",
    "Dear Sir or Madam,\n\n",
    "Recipe for bread:\n1.",
    "import numpy as np\n",
    "The opposite of hot is",
    "Photosynthesis is the process by which",
    "<|im_start|>user\nTranslate 'good morning' into French.<|im_end|>\n<|im_start|>assistant\n",
    "Roses are red,",
    "To be, or not to be,",
    "The mitochondria",
    "SELECT name FROM users WHERE",
]


@pytest.fixture(scope="module")
def ours() -> LoadedModel:
    return load_model("builtin:smollm2-135m", "fp32", name="smollm2-135m")


@pytest.fixture(scope="module")
def reference() -> Any:
    path = resolve("builtin:smollm2-135m")
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@torch.inference_mode()
def test_twenty_greedy_continuations_are_token_identical(ours: LoadedModel, reference: Any) -> None:
    """If at every position the reference's best token after ours so far is our next one, then, by
    induction, its greedy continuation is ours; that takes one pass of it per prompt."""
    tokenizer = Tokenizer.from_buffer(ours.card.tokenizer_json)
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in PROMPTS]
    assert len(prompts) == 20
    driver = Driver(ours, kv_memory_bytes=256 << 20)
    params = SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0, ignore_eos=True)
    for index, ids in enumerate(prompts):
        driver.submit(str(index), ids, params)
    driver.run()
    for index, ids in enumerate(prompts):
        output = driver.outputs[str(index), 0].token_ids
        assert len(output) == NUM_OUTPUT
        logits = reference(torch.tensor([ids + output])).logits[0]
        assert logits[len(ids) - 1 : -1].argmax(dim=-1).tolist() == output, PROMPTS[index]
