"""A client that leaves frees its blocks at once, seen through the engines' own counters."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, wait_for

LONG: dict[str, Any] = {
    "model": "smollm2-135m",
    "prompt": "Tell a very long story.",
    "max_tokens": 4000,
    "ignore_eos": True,
    "temperature": 0,
}


def open_request(cluster: Cluster, **fields: Any) -> socket.socket:
    """A request that is under way. Head and body leave in one packet: HAProxy 2.8 does not see a client leave
    before the first byte of the answer if they came apart (docs/design/ingress.md)."""
    host, port = cluster.url.removeprefix("http://").split(":")
    body = json.dumps({**LONG, **fields})
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    return connection


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
def test_a_client_that_leaves_while_decoding_frees_its_blocks(cluster: Cluster, stream: bool) -> None:
    cluster.wait_idle()
    connection = open_request(cluster, stream=stream)
    wait_for(lambda: cluster.metrics("headrace_worker_running_sequences") == 1, 10, "the request to run")
    if stream:
        assert connection.recv(20)
    connection.close()
    cluster.wait_idle()


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
def test_a_client_that_leaves_before_the_first_token_frees_its_blocks(cluster: Cluster, stream: bool) -> None:
    cluster.wait_idle()
    before = cluster.metrics("headrace_worker_tokens_total", phase="prefill")
    connection = open_request(cluster, stream=stream, prompt=[4093 + stream] * 2000, max_tokens=900)
    wait_for(lambda: not cluster.is_idle(), 10, "the prompt to be worked on")
    connection.close()
    cluster.wait_idle()
    assert cluster.metrics("headrace_worker_tokens_total", phase="prefill") - before < 2000
