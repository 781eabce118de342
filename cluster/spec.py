"""The configuration: one YAML file, one tree of documented fields.

Unknown fields are refused, with the nearest name that exists. `docs/configuration.md` is made from the
descriptions here (`headrace config --markdown`).
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cluster.units import Bytes, Seconds
from workers.config import Collectives, EngineConfig, Kernels, KvDtype, Speculation, Weights, WorkerConfig
from workers.errors import ConfigError

ToolFormat = Literal["auto", "hermes", "mistral", "llama3", "pythonic", "json"]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KvSpec(Section):
    dtype: KvDtype = Field(
        "auto",
        description="Numbers of the KV cache; auto is what the weights compute in. int8 has a scale for each "
        "token of each head, holds nearly twice as many tokens, and needs the native kernels.",
    )
    memory: Bytes = Field(1 << 30, description="Memory for the KV cache of one worker, its ranks together.")
    block_tokens: Literal[16, 32, 64] = Field(16, description="Tokens in one KV block.")


class SpeculationSpec(Section):
    method: Speculation = Field(
        "none",
        description="ngram drafts what followed the last tokens where they stood before in the sequence; "
        "the answer stays the same to the last bit.",
    )
    max_draft_tokens: int = Field(
        8, ge=1, le=15, description="Longest draft; drafts are shorter in larger batches and when they fail."
    )


class ParallelSpec(Section):
    tensor: int = Field(
        1,
        ge=1,
        le=64,
        description="Ranks that compute each layer together, each its share of the heads and columns.",
    )
    pipeline: int = Field(1, ge=1, le=64, description="Groups of ranks that hold consecutive layers.")
    collectives: Collectives = Field(
        "auto",
        description="auto takes shared memory among ranks of one CPU host; torch takes torch.distributed.",
    )


class PoolSpec(Section):
    role: Literal["unified"] = Field(
        "unified", description="What the pool's workers do: prefill and decode both."
    )
    replicas: int = Field(1, ge=1, le=256, description="Workers in the pool; each serves the whole model.")
    parallel: ParallelSpec = Field(
        default_factory=ParallelSpec,
        description="A worker is tensor × pipeline ranks, which hold the model together and end together.",
    )
    weights: Weights = Field(
        "auto",
        description="Precision; auto is bf16 where the hardware computes in it, else fp32. int8 and int4 "
        "have a scale per 32 weights and need the native kernels.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the workers compute; auto takes a GPU if there is one."
    )
    kernels: Kernels = Field(
        "auto",
        description="auto takes native kernels where the CPU has bf16; torch takes torch's operations.",
    )
    kv: KvSpec = Field(default_factory=KvSpec, description="The KV cache.")
    max_context_tokens: int | None = Field(
        None,
        ge=16,
        description="Longest prompt plus output; by default the model's own, or what the KV cache holds.",
    )
    max_sequences: int = Field(64, ge=1, le=4096, description="Sequences that a worker runs at once.")
    max_step_tokens: int = Field(512, ge=16, le=65536, description="Most prompt tokens in one engine step.")
    target_step: Seconds = Field(
        0.05,
        description="Time that a step with decoding sequences aims at; prompts are cut so that it is kept.",
    )
    speculation: SpeculationSpec = Field(
        default_factory=SpeculationSpec, description="Drafts of the next tokens, for fewer steps."
    )
    threads: int = Field(
        0, ge=0, description="CPU threads of a rank; 0 shares the machine's cores out evenly."
    )


class ModelSpec(Section):
    name: str = Field(min_length=1, max_length=128, description="What clients call the model.")
    source: str = Field(
        min_length=1,
        description="builtin:smollm2-135m, a directory with safetensors, a .gguf file, or hf:<repository>.",
    )
    tool_format: ToolFormat = Field(
        "auto",
        description="How the model writes calls of tools; auto tells it by the model's chat template.",
    )
    pools: tuple[PoolSpec, ...] = Field(
        (PoolSpec(),), min_length=1, description="The pools of workers that serve the model."
    )


class LimitsSpec(Section):
    body: Bytes = Field(4 << 20, description="Largest request body; a larger one is answered with 413.")


class RouterSpec(Section):
    replicas: int = Field(1, ge=1, le=64, description="Router replicas behind the HTTP proxy.")
    limits: LimitsSpec = Field(default_factory=LimitsSpec, description="What a request may be.")


class HttpSpec(Section):
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=1, le=65535, description="Port to listen on.")


class ClusterSpec(Section):
    models: tuple[ModelSpec, ...] = Field(min_length=1, description="The models to serve.")
    router: RouterSpec = Field(default_factory=RouterSpec, description="The path of a request.")
    http: HttpSpec = Field(default_factory=HttpSpec, description="The endpoint.")

    @model_validator(mode="after")
    def _names_differ(self) -> ClusterSpec:
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise ValueError(f"models must have different names, but these were given: {', '.join(names)}")
        return self

    def worker_configs(self, secret: bytes, num_cores: int) -> list[WorkerConfig]:
        """One for each worker, with epoch 0. `num_cores` are shared out where threads are not given."""
        places = [
            (model, pool) for model in self.models for pool in model.pools for _ in range(pool.replicas)
        ]
        share = max(num_cores // sum(pool.parallel.tensor * pool.parallel.pipeline for _, pool in places), 1)
        return [
            WorkerConfig(
                worker_id=f"{model.name}-{index}",
                epoch=0,
                model=model.name,
                source=model.source,
                role=pool.role,
                engine=_engine_config(pool, share),
                secret=secret,
            )
            for index, (model, pool) in enumerate(places)
        ]


def _engine_config(pool: PoolSpec, num_threads: int) -> EngineConfig:
    return EngineConfig(
        weights=pool.weights,
        device=pool.device,
        kernels=pool.kernels,
        kv_memory_bytes=pool.kv.memory,
        kv_dtype=pool.kv.dtype,
        block_tokens=pool.kv.block_tokens,
        max_context_tokens=pool.max_context_tokens,
        max_sequences=pool.max_sequences,
        max_step_tokens=pool.max_step_tokens,
        target_step_s=pool.target_step,
        speculation=pool.speculation.method,
        max_draft_tokens=pool.speculation.max_draft_tokens,
        threads=pool.threads or num_threads,
        tensor=pool.parallel.tensor,
        pipeline=pool.parallel.pipeline,
        collectives=pool.parallel.collectives,
    )


def load_spec(path: Path) -> ClusterSpec:
    """The configuration in a file. Raises ConfigError that names the file, the field and the remedy."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_spec(text, str(path))


def parse_spec(text: str, origin: str) -> ClusterSpec:
    """The configuration in YAML; `origin` is what errors call it."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{origin} must be a mapping that has at least `models`; see docs/configuration.md")
    try:
        return ClusterSpec.model_validate(tree)
    except ValidationError as error:
        problems = "; ".join(_problem(entry) for entry in error.errors(include_url=False))
        raise ConfigError(f"{origin}: {problems}") from error


def _problem(entry: Any) -> str:
    location = tuple(entry["loc"])
    if entry["type"] == "extra_forbidden":
        return f"{_path(location)} is not a field{_suggestion(location)}"
    message = entry["msg"].removeprefix("Value error, ")
    given = "" if "given" in message or entry["type"] == "missing" else f", but {entry['input']!r} was given"
    return f"{_path(location) or 'the file'}: {message}{given}"


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(
        "."
    )


def _suggestion(location: tuple[int | str, ...]) -> str:
    section: Any = ClusterSpec
    for part in location[:-1]:
        if isinstance(part, str):
            section = _section_of(section.model_fields[part].annotation)
    names = list(section.model_fields)
    near = difflib.get_close_matches(str(location[-1]), names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"


def _section_of(annotation: Any) -> Any:
    """The section in the type of a field, which may be a tuple of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(found for part in get_args(annotation) if (found := _section_of(part)) is not None)
