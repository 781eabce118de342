"""What a router replica must know to start; the cluster builds it from the YAML tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """`models` are the names that are configured, whether a worker is up or not."""

    models: tuple[str, ...]
    secret: bytes = field(repr=False)
    max_body_bytes: int = 4 << 20
    tool_formats: Mapping[str, str] = field(default_factory=dict)  # by model; "auto" or a dialect's name
