"""A whole cluster, started the way a user starts it, shared by every end-to-end test of the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.cluster import Cluster

SPEC = """
models:
  - name: smollm2-135m
    source: builtin:smollm2-135m
    pools:
      - role: unified
        replicas: 2
        kv: {memory: 256MiB}
router:
  replicas: 2
  limits: {body: 256KiB}
"""


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers and two router replicas from YAML alone."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    (folder / "cluster.yaml").write_text(SPEC)
    running = Cluster.start(folder / "cluster.yaml", folder / "log.txt")
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="package")
def client(cluster: Cluster) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{cluster.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client
