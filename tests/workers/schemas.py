"""Random JSON schemas of the kinds that applications send, small enough that a small model comes to an end."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

_WORDS = [
    "name",
    "age",
    "city",
    "tags",
    "price",
    "items",
    "is_open",
    "größe",
    "x-y",
    "a b",
    'quo"te',
    "back\\slash",
]
_FORMATS = ["date", "time", "date-time", "uuid", "ipv4"]  # an e-mail address has no longest form
_PATTERNS = ["^[a-z]{2,5}$", "^[A-Z][a-z]+-[0-9]{1,3}$", "^(yes|no|maybe)$"]


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    """An object at the top, as applications have it."""
    return _object(rng, depth, {})


def _value(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    simple = [_string, _integer, _number, _choice, _boolean, _nullable]
    nested = [_object, _array, _any_of, _reference]
    return rng.choice(simple + (nested if depth > 0 else []))(rng, depth - 1, defs)


def _object(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    names = rng.sample(_WORDS, rng.randint(1, 3))
    own = defs or {"leaf": _string(rng, 0, {})}
    properties = {name: _value(rng, depth - 1, own) for name in names}
    required = [name for name in names if rng.random() < 0.8]
    schema: Schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return schema if defs else schema | {"$defs": own, "title": "Random", "description": "a random schema"}


def _array(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    least = rng.randint(0, 2)
    return {"type": "array", "items": _value(rng, depth, defs), "minItems": least, "maxItems": least + 2}


def _any_of(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    return {"anyOf": [_value(rng, depth, defs), _value(rng, depth, defs)]}


def _reference(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    return {"$ref": "#/$defs/leaf"}


def _string(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 20)}


def _integer(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    low = rng.randint(-1000, 1000)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)}


def _number(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": rng.choice([1, 99.5, 1000])}


def _choice(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    if rng.random() < 0.3:
        return {"const": rng.choice(["fixed", 7, True, None])}
    return {"enum": rng.sample(["red", "green", "blue", 1, 2.5, None, False, ["a", 1]], 3)}


def _boolean(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    return {"type": "boolean"}


def _nullable(rng: random.Random, depth: int, defs: dict[str, Schema]) -> Schema:
    return {"type": ["boolean", "null"]}
