"""A cluster whose answers are short, because its context is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster

SPEC = """
models:
  - name: smollm2-135m
    source: builtin:smollm2-135m
    pools:
      - role: unified
        max_context_tokens: 96
        kv: {memory: 64MiB}
router:
  limits: {body: 64KiB}
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=120, help="about how many requests schemathesis makes")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("conformance")
    (folder / "cluster.yaml").write_text(SPEC)
    running = Cluster.start(folder / "cluster.yaml", folder / "log.txt")
    try:
        yield running
    finally:
        running.stop()
