"""Prometheus texts of many processes, merged into one that a scraper accepts.

A family's metadata appears once and its samples stand together, whoever they came from, as the text
format demands. Samples are passed on as they are: each process labels its own, so none of them collide.
"""

from __future__ import annotations

from collections.abc import Iterable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_created")


class _Family:
    """One family: its HELP and TYPE lines as first seen, and everyone's samples in order of arrival."""

    __slots__ = ("metadata", "samples")

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self.samples: list[str] = []


def merge(expositions: Iterable[str]) -> str:
    """One exposition of everything in `expositions`.

    Metadata of the first to declare a family counts. A line that is no sample, and a sample whose series
    (name and labels) was already given by an earlier text, is dropped, so that the result is always valid.
    """
    families: dict[str, _Family] = {}
    seen: set[str] = set()
    for text in expositions:
        declared: set[str] = set()
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                _, keyword, name, *_ = line.split(" ", 3)
                declared.add(name)
                families.setdefault(name, _Family()).metadata.setdefault(keyword, line)
            elif line and not line.startswith("#"):
                series = _series(line)
                if series is not None and series not in seen:
                    seen.add(series)
                    name = _family_of(series.partition("{")[0], declared)
                    families.setdefault(name, _Family()).samples.append(line)
    return "".join(_rendered(family) for family in families.values() if family.samples)


def _series(line: str) -> str | None:
    """The sample's name and labels; a label's value may hold spaces and braces. None if it is no sample."""
    end = line.rfind("}")
    if end >= 0:
        series, values = line[: end + 1], line[end + 1 :]
    else:
        series, _, values = line.partition(" ")
    return series if series[0] not in "{ " and _is_number(values) else None


def _is_number(values: str) -> bool:
    """Whether this is a sample's value, with or without a time stamp."""
    value, *rest = values.split() or [""]
    try:
        float(value)
    except ValueError:
        return False
    return len(rest) <= 1


def _family_of(sample: str, declared: set[str]) -> str:
    if sample in declared:
        return sample
    for suffix in _SUFFIXES:
        name = sample.removesuffix(suffix)
        if name in declared:
            return name
    return sample


def _rendered(family: _Family) -> str:
    lines = [line for keyword in ("HELP", "TYPE") if (line := family.metadata.get(keyword))]
    return "".join(f"{line}\n" for line in [*lines, *family.samples])
