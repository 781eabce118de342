"""The OpenAPI document says what is served, and whatever a client sends, the answer is one it describes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster

CHECKS = ",".join(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
    ]
)


@pytest.mark.timeout(3600)
def test_no_request_breaks_the_server_or_its_document(
    cluster: Cluster, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    document = json.loads(cluster.get("/openapi.json"))
    num_operations = sum(len(methods) for methods in document["paths"].values())
    num_cases = pytestconfig.getoption("--cases")
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{cluster.url}/openapi.json"),
        *("--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--request-timeout", "30"),
        *("--max-examples", str(max(num_cases // num_operations, 1)), "--workers", "1"),
        *("--generation-deterministic", "--no-color", "--suppress-health-check", "all"),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3500)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-4_000:]
    generated = re.search(r"(\d+) generated", run.stdout)
    assert generated is not None
    assert int(generated[1]) >= num_cases // 2
    cluster.wait_idle()
    assert cluster.get("/health")


def test_every_route_is_in_the_document(cluster: Cluster) -> None:
    document = json.loads(cluster.get("/openapi.json"))
    assert document["openapi"].startswith("3.1")
    for methods in document["paths"].values():
        for operation in methods.values():
            assert {"200", "400", "404", "500", "503"} <= operation["responses"].keys()
