"""A model's weights as a bf16 safetensors directory, so that two servers can load the very same file.

The GGUF file is read by transformers, rounded to bf16 once, and written with its tokenizer and chat template.
A directory that is already complete is left as it is.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

MARK = "headrace-export.json"


def export_bf16(source: str, folder: Path) -> Path:
    """The directory with the weights of `source`, a `builtin:` name or a .gguf file."""
    from workers.load.sources import resolve

    file = resolve(source)
    origin = {"file": file.name, "bytes": file.stat().st_size}
    mark = folder / MARK
    if mark.is_file() and json.loads(mark.read_text()) == origin:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    _write(file, folder)
    mark.write_text(json.dumps(origin))
    return folder


def parameters_of(folder: Path) -> tuple[int, int]:
    """How many numbers the layers of an exported model have, and how many its head."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        sizes = {name: math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    head = next(sizes[name] for name in ("lm_head.weight", "model.embed_tokens.weight") if name in sizes)
    return sum(size for name, size in sizes.items() if ".layers." in name), head


def _write(file: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = model.config
    if hasattr(config, "quantization_config"):  # the file's own format, which the copy does not have
        del config.quantization_config
    config.dtype = torch.bfloat16
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    weights = {
        name: weight.to(torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
