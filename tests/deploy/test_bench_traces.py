"""Trace files are told by their content; what is wrong with one is said by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.bench.traces import read_trace
from deploy.bench.words import TextScale
from deploy.bench.workload import Replay
from workers.errors import ConfigError

AZURE = "ms,context_tokens,generated_tokens\n0,374,44\n120,396,109\n"
SERVEGEN = "ms,client,input_tokens,output_tokens\n5,3,100,20\n50,1,7,2\n"
VIDUR = "num_prefill_tokens,num_decode_tokens\n300,20\n40,2\n"


def mooncake(*rows: tuple[int, int, int, list[int]]) -> str:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "times", "lengths"),
    [
        (AZURE, [0.0, 0.12], [(374, 44), (396, 109)]),
        (SERVEGEN, [0.005, 0.05], [(100, 20), (7, 2)]),
        (VIDUR, [None, None], [(300, 20), (40, 2)]),
        (mooncake((0, 40, 5, [0, 1]), (30, 32, 1, [0])), [0.0, 0.03], [(40, 5), (32, 1)]),
    ],
    ids=["Azure", "ServeGen", "Vidur", "Mooncake"],
)
def test_every_format_is_read(
    tmp_path: Path, text: str, times: list[float | None], lengths: list[tuple[int, int]]
) -> None:
    trace = read_trace(written(tmp_path, text))
    assert [entry.at_s for entry in trace.entries] == times
    assert [(entry.num_input_tokens, entry.num_output_tokens) for entry in trace.entries] == lengths
    assert trace.has_times == (times[0] is not None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; a trace is a CSV with"),
        ("a,b\n1,2\n", r"its first line is 'a,b'; known are"),
        ("ms,context_tokens,generated_tokens\n", "has a header but no requests"),
        (AZURE + "130,many,1\n", "line 4 is wrong: .*'many'"),
        (AZURE + "130,5,0\n", "line 4 has 5 input and 0 output tokens; both must be at least 1"),
        (AZURE + "60,5,1\n", "is not in order of time"),
        ('{"timestamp": 1}', "line 1 is no trace entry: it has timestamp, wanted are"),
        ('{"timestamp": 1', "line 1 is not JSON"),
        (mooncake((0, 40, 5, [0, 1]), (1, 40, 5, [0])), "no block size explains"),
    ],
)
def test_a_wrong_file_is_refused_by_line_and_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(written(tmp_path, text))


def test_equal_blocks_get_equal_text_and_the_same_seed_the_same_requests(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, mooncake((0, 64, 5, [0, 1]), (30, 64, 1, [0, 2]))))
    scale = TextScale()
    first, second = Replay(trace, scale, seed=1)
    words = [request.turns[0].split() for request in (first, second)]
    assert words[0][:32] == words[1][:32]
    assert words[0][32:] != words[1][32:]
    assert list(Replay(trace, scale, seed=1)) == [first, second]
    assert list(Replay(trace, scale, seed=2)) != [first, second]
    cut = next(iter(Replay(trace, scale, seed=1, max_input_tokens=10, max_output_tokens=2)))
    assert (len(cut.turns[0].split()), cut.max_tokens) == (10, 2)
