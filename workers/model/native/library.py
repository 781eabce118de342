"""Compiles `tape.c` and `exchange.c` for this very CPU, once, and loads them.

The results are kept in the user's cache under names that hold everything they depend on. Where there is no
compiler, there is neither; where no CPU multiplies bf16, there is no tape, and the torch operations do the
work.
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
import sys
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
COMPILE_S = 120.0


@functools.cache
def load() -> ctypes.CDLL | None:
    """The tape, or None if this machine cannot have it. Import torch first: it brings the OpenMP runtime
    that both then share."""
    if not {"avx512_bf16", "avx512_vnni"} <= set(_cpu_features().split()):
        return None
    library = _library("tape.c")
    if library is not None:
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        library.headrace_run.argtypes = (pointer, integer, pointer, pointer, integer, pointer)
        library.headrace_run.restype = integer
    return library


@functools.cache
def load_exchange() -> ctypes.CDLL | None:
    """What ranks that share memory need, or None if this machine cannot have it."""
    if not sys.platform.startswith("linux"):
        return None
    library = _library("exchange.c")
    if library is not None:
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        library.headrace_reduce.argtypes = (pointer, pointer, size, ctypes.c_int)
        for function in (library.headrace_share, library.headrace_put, library.headrace_take):
            function.argtypes = (pointer, pointer, size)
    return library


def _library(main: str) -> ctypes.CDLL | None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    sources = [path.read_text() for path in sorted(FOLDER.glob("*.[ch]"))]
    key = hashlib.sha256("|".join([main, *sources, *FLAGS, _cpu_features()]).encode()).hexdigest()[:24]
    path = _cache_folder() / f"{Path(main).stem}-{key}.so"
    try:
        if not path.exists():
            _compile(compiler, FOLDER / main, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        logger.warning("%s cannot be built, torch's operations are used instead: %s", main, detail)
        return None


def _compile(compiler: str, main: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = [compiler, *FLAGS, str(main), "-o", str(built)]
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
