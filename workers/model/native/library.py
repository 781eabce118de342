"""Compiles `tape.c` for this very CPU, once, and loads it.

The result is kept in the user's cache under a name that holds everything it depends on. Where there is no
compiler, or no CPU that multiplies bf16, there is no library, and the torch operations do the work.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
MAIN = FOLDER / "tape.c"
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
COMPILE_S = 120.0


@functools.cache
def load() -> ctypes.CDLL | None:
    """The library, or None if this machine cannot have it. Import torch first: it brings the OpenMP runtime
    that both then share."""
    features = _cpu_features()
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not {"avx512_bf16", "avx512_vnni"} <= set(features.split()):
        return None
    sources = [path.read_text() for path in sorted(FOLDER.glob("*.[ch]"))]
    key = hashlib.sha256("|".join([*sources, *FLAGS, features]).encode()).hexdigest()[:24]
    path = _cache_folder() / f"kernels-{key}.so"
    try:
        if not path.exists():
            _compile(compiler, path)
        library = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        logger.warning("the native kernels cannot be built, torch's operations are used instead: %s", detail)
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    library.headrace_run.argtypes = (pointer, integer, pointer, pointer, integer)
    library.headrace_run.restype = integer
    return library


def _compile(compiler: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [compiler, *FLAGS, str(MAIN), "-o", str(built)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_S)
        built.replace(path)  # workers that start together each build it; the last one wins


def _cpu_features() -> str:
    """What decides the code that the compiler makes for this machine; empty where it is not Linux on x86."""
    if platform.machine() != "x86_64":
        return ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
