"""`docs/configuration.md`, made from the descriptions in `cluster/spec.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cluster.spec import ClusterSpec, Section
from cluster.units import format_bytes, format_seconds

_HEADING = """# Configuration

One YAML file, given to `headrace serve FILE`. Unknown fields are refused. Sizes are written `64MiB`, `1GB`;
durations `50ms`, `2s`. `headrace config [FILE]` prints a configuration with all defaults filled in. This page
is made by `headrace config --markdown`.

| field | type | default | meaning |
|---|---|---|---|
"""


def markdown() -> str:
    """The page."""
    rows = [
        f"| `{path}` | {type_} | {default} | {text} |"
        for path, type_, default, text in _rows(ClusterSpec, "")
    ]
    return _HEADING + "\n".join(rows) + "\n"


def _rows(section: type[Section], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in section.model_fields.items():
        inner = _inner(field.annotation)
        path = f"{prefix}{name}"
        if inner is None:
            yield path, _type(field), _default(field), field.description or ""
        else:
            is_list = inner is not field.annotation
            default = "required" if field.is_required() else "one, with all defaults" if is_list else ""
            yield path, "list" if is_list else "section", default, field.description or ""
            yield from _rows(inner, f"{path}{'[]' if is_list else ''}.")


def _inner(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := _inner(part)) is not None), None)


def _type(field: FieldInfo) -> str:
    schema = next((item.json_schema for item in field.metadata if hasattr(item, "json_schema")), None)
    if schema is not None:
        return str(schema["type"])
    choices = [part for part in get_args(field.annotation) if part is not type(None)]
    if choices and not any(isinstance(part, type) for part in choices):
        return " \\| ".join(f"`{choice}`" for choice in choices)
    kind = choices[0] if choices else field.annotation
    return {int: "integer", str: "text"}[kind]  # type: ignore[index]


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "–"
    unit = _type(field)
    if unit == "size":
        return f"`{format_bytes(field.default)}`"
    return f"`{format_seconds(field.default) if unit == 'duration' else field.default}`"
