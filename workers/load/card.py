"""The ModelCard: what a router must know to turn text into a model's tokens and back."""

from __future__ import annotations

from typing import Any

from workers.errors import ConfigError
from workers.load.checkpoint import Checkpoint
from workers.wire import ModelCard


def describe(checkpoint: Checkpoint, name: str, created: int) -> ModelCard:
    """The card of the model served as `name`. Raises ConfigError if its tokenizer cannot be read."""
    try:
        tokenizer = checkpoint.tokenizer()
        backend = tokenizer.backend_tokenizer
    except Exception as error:  # transformers raises whatever its converters raise
        raise ConfigError(f"the tokenizer of {name!r} cannot be read: {error}") from error
    eos_ids = dict.fromkeys([*checkpoint.eos_ids, tokenizer.eos_token_id])
    return ModelCard(
        model=name,
        tokenizer_json=backend.to_str().encode(),
        chat_template=_template(tokenizer.chat_template),
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        bos_id=tokenizer.bos_token_id,
        eos_ids=[token_id for token_id in eos_ids if token_id is not None],
        add_bos=_adds_bos(tokenizer),
        vocab_size=checkpoint.config.vocab_size,
        created=created,
    )


def _adds_bos(tokenizer: Any) -> bool:
    """Whether the model wants BOS before a plain prompt: its tokenizer then puts one there by itself."""
    ids = tokenizer("a").input_ids
    return tokenizer.bos_token_id is not None and bool(ids) and ids[0] == tokenizer.bos_token_id


def _template(template: str | dict[str, str] | None) -> str | None:
    """A model may have several templates by name; the default one is for chat."""
    if isinstance(template, dict):
        return template.get("default")
    return template
