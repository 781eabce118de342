"""Sizes and durations as people write them: 64MiB, 1.5GB, 50ms, 2s, 5m. A bare number is bytes or seconds."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_BYTES = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_bytes(value: object) -> int:
    """A number of bytes. Raises ValueError for anything that is no positive size."""
    return int(_parse(value, _BYTES, "a size such as 64MiB or 1GB"))


def parse_seconds(value: object) -> float:
    """A number of seconds. Raises ValueError for anything that is no positive duration."""
    return _parse(value, _SECONDS, "a duration such as 50ms or 2s")


def format_bytes(value: int) -> str:
    """The shortest exact way to write it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return f"{value}B"


def format_seconds(value: float) -> str:
    """In milliseconds below a second, in seconds from there."""
    return f"{value * 1e3:g}ms" if value < 1 else f"{value:g}s"


def _parse(value: object, units: dict[str, float] | dict[str, int], what: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    if isinstance(value, bool) or found is None or found[2] not in units:
        raise ValueError(f"must be {what}, but {value!r} was given")
    number = float(found[1]) * units[found[2]]
    if number <= 0:
        raise ValueError(f"must be more than nothing, but {value!r} was given")
    return number


Bytes = Annotated[
    int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes), WithJsonSchema({"type": "size"})
]
Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    PlainSerializer(format_seconds),
    WithJsonSchema({"type": "duration"}),
]
