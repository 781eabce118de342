"""`/v1/models`: what is served here, in OpenAI's shape.

A model is listed under the name by which requests ask for it; a request for any other name is told which
names there are.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from workers.errors import UnknownModel
from workers.wire import ModelCard


class Model(msgspec.Struct, frozen=True):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "headrace"


class ModelList(msgspec.Struct, frozen=True):
    data: list[Model]
    object: str = "list"


def model_body(card: ModelCard) -> bytes:
    """The body of GET /v1/models/{model}."""
    return msgspec.json.encode(Model(card.model, card.created))


def models_body(cards: Iterable[ModelCard]) -> bytes:
    """The body of GET /v1/models."""
    return msgspec.json.encode(ModelList([Model(card.model, card.created) for card in cards]))


def unknown_model(asked: str, served: Iterable[str]) -> UnknownModel:
    """The error for a model that is not served; it lists those that are."""
    names = ", ".join(sorted(served)) or "none yet"
    return UnknownModel(f"the model {asked[:200]!r} is not served here; served: {names}", param="model")
