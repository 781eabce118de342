"""What a worker needs to know to start: the model, the engine's limits, its place in the cluster.

The cluster builds these from the YAML tree (`cluster/spec.py`); the worker never reads YAML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Weights = Literal["auto", "bf16", "fp32", "int8", "int4"]
Role = Literal["unified", "prefill", "decode"]
Kernels = Literal["auto", "torch"]
Speculation = Literal["none", "ngram"]
KvDtype = Literal["auto", "int8"]
Device = Literal["auto", "cpu", "cuda"]
Collectives = Literal["auto", "torch"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine. `threads` 0 means all cores of this host."""

    weights: Weights = "auto"
    device: Device = "cpu"
    kernels: Kernels = "auto"
    kv_dtype: KvDtype = "auto"
    kv_memory_bytes: int = 1 << 30
    block_tokens: int = 16
    max_context_tokens: int | None = None  # None: the model's own
    max_sequences: int = 64
    max_step_tokens: int = 512
    target_step_s: float = 0.05
    speculation: Speculation = "none"
    max_draft_tokens: int = 8
    threads: int = 0  # of each rank
    tensor: int = 1
    pipeline: int = 1
    collectives: Collectives = "auto"

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker: which model it serves, under which name, and how routers may reach it.

    `worker_id` names the place in the pool and survives restarts; `epoch` grows with each restart, so
    that whoever holds an older one is refused. `secret` authenticates every link of this cluster.
    """

    worker_id: str
    epoch: int
    model: str
    source: str
    role: Role
    engine: EngineConfig
    secret: bytes
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a started worker listens; `incarnation` differs for every process that ever ran."""

    worker_id: str
    model: str
    epoch: int
    incarnation: str
    host: str
    port: int
    pid: int
