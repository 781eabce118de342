"""A rank reads its part of the weights and no more: its memory never comes near the whole model's."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.parity.families import save
from workers.config import EngineConfig
from workers.load.model import PartLoader

SAMPLE_S = 0.001
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.workers.shards.test_memory"])


def own_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def measure(source: str, tensor: int, pipeline: int, rank: int, pipe: Connection) -> None:
    """Tell by how many bytes the process was larger, at most, while it loaded the rank's part."""
    config = EngineConfig(weights="bf16", kernels="torch", tensor=tensor, pipeline=pipeline)
    loader = PartLoader.open(source, config)
    before = peak = own_bytes()
    is_loaded = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_loaded.wait(SAMPLE_S):
            peak = max(peak, own_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    decoder = loader.load(rank, None)
    is_loaded.set()
    watcher.join()
    pipe.send(max(peak, own_bytes()) - before)
    del decoder


def peak_bytes(source: str, tensor: int, pipeline: int, rank: int) -> int:
    ours, theirs = context.Pipe()
    process = context.Process(target=measure, args=[source, tensor, pipeline, rank, theirs])
    process.start()
    assert ours.poll(60)
    found: int = ours.recv()
    process.join(10)
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """48 million weights, a third of them in embedding and head."""
    folder: Path = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=16_000,
        hidden_size=512,
        intermediate_size=2048,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_hidden_layers=8,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
    )
    save(LlamaForCausalLM(config), folder)
    return str(folder)


def test_each_of_four_ranks_needs_little_more_than_a_quarter(source: str) -> None:
    whole = peak_bytes(source, 1, 1, 0)
    for rank in range(4):
        assert peak_bytes(source, 2, 2, rank) < 0.4 * whole


def test_each_of_four_lanes_needs_little_more_than_a_quarter(source: str) -> None:
    whole = peak_bytes(source, 1, 1, 0)
    assert peak_bytes(source, 4, 1, 3) < 0.4 * whole
