"""The configuration: what is accepted, what is refused and how the refusal reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.spec import load_spec, parse_spec
from cluster.units import format_bytes, format_seconds, parse_bytes, parse_seconds
from workers.errors import ConfigError

MODEL = "models:\n  - name: m\n    source: builtin:smollm2-135m\n"

REFUSED = {
    "models: [": r"spec is not YAML: ",
    "just text": r"spec must be a mapping that has at least `models`",
    "models: []": r"models: .*at least 1 item",
    "{}": r"models: Field required",
    MODEL + "ruoter: {replicas: 2}\n": r"ruoter is not a field; did you mean router\?",
    MODEL
    + "    pools: [{replcas: 2}]\n": r"models\[0\]\.pools\[0\]\.replcas is not a field; did you mean replicas\?",
    MODEL
    + "    pools: [{kv: {memori: 1GiB}}]\n": r"models\[0\]\.pools\[0\]\.kv\.memori is not a field; did you mean memory\?",
    MODEL
    + "    pools: [{kv: {memory: lots}}]\n": r"kv\.memory: must be a size such as 64MiB or 1GB, but 'lots' was given",
    MODEL + "    pools: [{target_step: -1s}]\n": r"target_step: must be a duration such as 50ms or 2s",
    MODEL + "    pools: [{replicas: 0}]\n": r"replicas: .*greater than or equal to 1, but 0 was given",
    MODEL + "    pools: [{role: decode}]\n": r"role: .*'unified', but 'decode' was given",
    MODEL + "router: {limits: {body: 0}}\n": r"router\.limits\.body: must be more than nothing",
    MODEL + "http: {port: 70000}\n": r"http\.port: .*less than or equal to 65535, but 70000 was given",
    MODEL + "  - {name: m, source: x}\n": r"different names, but these were given: m, m",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_wrong_configuration_is_refused_by_field_and_remedy(text: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[text]) as refused:
        parse_spec(text, "spec")
    assert "\n" not in refused.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.yaml: No such file"):
        load_spec(tmp_path / "nothing.yaml")


def test_workers_share_the_cores_and_have_names_of_their_own() -> None:
    spec = parse_spec(MODEL + "    pools: [{replicas: 2}, {threads: 3, kv: {memory: 64MiB}}]\n", "spec")
    configs = spec.worker_configs(b"secret", num_cores=8)
    assert [config.worker_id for config in configs] == ["m-0", "m-1", "m-2"]
    assert [config.engine.threads for config in configs] == [2, 2, 3]
    assert configs[2].engine.kv_memory_bytes == 64 << 20
    assert spec.worker_configs(b"secret", num_cores=1)[0].engine.threads == 1


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000), ("2KiB", 2048), (7, 7)]
)
def test_sizes_are_read_as_people_write_them(text: object, value: int) -> None:
    assert parse_bytes(text) == value
    assert parse_bytes(format_bytes(value)) == value


@pytest.mark.parametrize(
    ("text", "value"), [("50ms", 0.05), ("2s", 2.0), ("1.5m", 90.0), (3, 3.0), ("250us", 0.00025)]
)
def test_durations_are_read_as_people_write_them(text: object, value: float) -> None:
    assert parse_seconds(text) == pytest.approx(value)
    assert parse_seconds(format_seconds(value)) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "ms", "-3s", "1 parsec", None, True, "0"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"must be (a duration|more than nothing)"):
        parse_seconds(text)
