"""Loading a model: from the `source` of the configuration to a decoder that is ready to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from workers.config import EngineConfig, Kernels, Weights
from workers.errors import ConfigError
from workers.load.assembly import assemble, assemble_part, uses_native
from workers.load.card import describe
from workers.load.checkpoint import Checkpoint
from workers.load.directory import DirectoryCheckpoint
from workers.load.gguf import GgufCheckpoint
from workers.load.sources import resolve
from workers.model.config import ModelConfig
from workers.model.decoder import Decoder
from workers.model.lanes import Lanes
from workers.model.linear import can_compute_bf16
from workers.model.native.panels import Bits
from workers.model.parts import Cut, cut
from workers.wire import ModelCard

_DTYPES = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "int8": torch.bfloat16,
    "int4": torch.bfloat16,
}
_BITS: dict[Weights, Bits] = {"int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder and what routers are told of it."""

    decoder: Decoder
    card: ModelCard

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype


def load_model(
    source: str, weights: Weights, *, name: str, device: str = "cpu", kernels: Kernels = "auto"
) -> LoadedModel:
    """Load the model that clients call `name`. `device` is "cpu", "cuda" or "auto".

    Raises ConfigError if the source, a format in it or the device is not to be had.
    """
    target = _device(device)
    path = resolve(source)
    checkpoint = open_checkpoint(path)
    card = describe(checkpoint, name, created=int(path.stat().st_mtime))
    return LoadedModel(
        assemble(checkpoint, _dtype(weights, target), target, kernels, _BITS.get(weights, 16)), card
    )


def open_checkpoint(path: Path) -> Checkpoint:
    return GgufCheckpoint(path) if path.suffix == ".gguf" else DirectoryCheckpoint(path)


@dataclass(frozen=True, slots=True)
class PartLoader:
    """Loads what one rank of a gang holds of a model. Raises ConfigError as `load_model` does, and if the
    model cannot be cut so."""

    path: Path
    checkpoint: Checkpoint
    cut: Cut
    weights: Weights
    device: torch.device
    kernels: Kernels

    @classmethod
    def open(cls, source: str, config: EngineConfig) -> PartLoader:
        path = resolve(source)
        checkpoint = open_checkpoint(path)
        whole = cut(checkpoint.config, config.tensor, config.pipeline)
        return cls(path, checkpoint, whole, config.weights, _device(config.device), config.kernels)

    def load(self, rank: int, lanes: Lanes | None) -> Decoder:
        """The rank's decoder; lanes without shared memory cannot run the native one."""
        dtype, bits = _dtype(self.weights, self.device), _BITS.get(self.weights, 16)
        has_memory = lanes is None or lanes.exchange is not None
        kernels = self.kernels if has_memory else "torch"
        is_native = uses_native(self.cut, dtype, self.device, kernels, bits)
        part = self.cut.parts[rank]
        return assemble_part(self.checkpoint, part, lanes, dtype, self.device, is_native, bits)

    def card(self, name: str) -> ModelCard:
        return describe(self.checkpoint, name, created=int(self.path.stat().st_mtime))


def _device(device: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if device == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if device == "cuda" and not has_cuda:
        raise ConfigError("device is cuda, but torch finds no CUDA device here; use device: cpu or auto")
    return torch.device(device)


def _dtype(weights: Weights, device: torch.device) -> torch.dtype:
    if weights != "auto":
        return _DTYPES[weights]
    return torch.bfloat16 if can_compute_bf16(device) else torch.float32
