"""The command line, run as a user runs it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import yaml

from cluster.spec import parse_spec
from deploy.reference import markdown

ROOT = Path(__file__).parents[2]


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def assert_one_line(run: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert run.returncode == 2, run
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    for part in parts:
        assert part in run.stderr


def test_the_reference_of_the_configuration_is_current() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == markdown()


def test_config_prints_the_default_with_all_fields_and_it_reads_back() -> None:
    run = headrace("config")
    assert run.returncode == 0, run
    printed = yaml.safe_load(run.stdout)
    assert printed["models"][0]["pools"][0]["kv"] == {
        "dtype": "auto",
        "memory": "1GiB",
        "block_tokens": 16,
    }
    assert parse_spec(run.stdout, "printed").model_dump(mode="json") == printed


def test_a_wrong_field_is_one_line_on_stderr(tmp_path: Path) -> None:
    spec = tmp_path / "c.yaml"
    spec.write_text("models: [{name: m, source: builtin:smollm2-135m}]\nrooter: {}\n")
    assert_one_line(headrace("config", str(spec)), str(spec), "rooter is not a field; did you mean router?")


def test_a_source_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path) -> None:
    spec = tmp_path / "c.yaml"
    spec.write_text("models: [{name: m, source: 'builtin:gpt-9'}]\n")
    assert_one_line(headrace("serve", str(spec)), "no builtin model 'gpt-9'; there is smollm2-135m")


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_one_line(headrace("serve", "--port", port), f"port {port} of 127.0.0.1 is in use", "--port")


def test_status_without_a_cluster_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert_one_line(
        headrace("status", "--url", url), f"no answer from {url}", "is `headrace serve` running there?"
    )


def test_version_is_the_packages() -> None:
    assert headrace("version").stdout.strip() == "0.1.0"
