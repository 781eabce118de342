"""Environments of the engines that ours is compared with, made once, each in a folder of its own.

What cannot be had on this machine (no compiler, no network) is reported by `PeerMissing`, and the bench goes
on without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

DEFAULT_FOLDER = Path("~/.cache/headrace/bench/peers").expanduser()
OPENVINO_PACKAGES = ("openvino-genai==2026.4.1", "optimum-intel[openvino]==2.2.0", "torch==2.13.0")
LLAMA_CPP = "llama-cpp-python==0.3.36"  # its source package carries llama.cpp whole
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


class PeerMissing(Exception):
    """An engine that cannot be had here; the message says why."""


class OpenVino:
    """OpenVINO GenAI and what exports models for it (2 GB)."""

    def __init__(self, folder: Path) -> None:
        self._venv = folder / "openvino"
        self.python = self._venv / "bin/python"

    def prepare(self) -> None:
        """Raises PeerMissing."""
        mark = self._venv / ".headrace-peer"
        content = "\n".join(OPENVINO_PACKAGES)
        if mark.is_file() and mark.read_text() == content:
            return
        print(f"installing OpenVINO into {self._venv} (once)", file=sys.stderr)
        _run("OpenVINO", [sys.executable, "-m", "venv", str(self._venv)])
        _run("OpenVINO", [str(self.python), "-m", "pip", "install", "--quiet", *OPENVINO_PACKAGES])
        # It does not load beside a CPU build of torch, and text needs none of it.
        _run("OpenVINO", [str(self.python), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"])
        mark.write_text(content)

    def export(self, model: Path, weights: str, folder: Path) -> Path:
        """The model with weights of fp16 (computed in bf16), int8, or int4. Raises PeerMissing."""
        if not (folder / "openvino_model.xml").is_file():
            command = [str(self._venv / "bin/optimum-cli"), "export", "openvino", "--model", str(model)]
            formats = {
                "bf16": ["fp16"],
                "int8": ["int8"],
                "int4": ["int4", "--group-size", "32", "--ratio", "1.0"],
            }
            command += ["--task", "text-generation-with-past", "--weight-format", *formats[weights]]
            _run("OpenVINO", [*command, str(folder)])
        return folder


class LlamaCpp:
    """llama.cpp built for this very CPU."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "llama.cpp"
        self._bin = self._folder / "build/bin"
        self.server = self._bin / "llama-server"

    def prepare(self) -> None:
        """Raises PeerMissing."""
        if self.server.is_file() and (self._bin / "llama-quantize").is_file():
            return
        if shutil.which("g++") is None:
            raise PeerMissing("llama.cpp has to be built, and there is no g++ here")
        self._folder.mkdir(parents=True, exist_ok=True)
        tools = self._folder / "tools"
        print(f"building llama.cpp in {self._folder} (five minutes; once)", file=sys.stderr)
        _run("llama.cpp", [sys.executable, "-m", "venv", str(tools)])
        pip = [str(tools / "bin/python"), "-m", "pip"]
        _run("llama.cpp", [*pip, "install", "--quiet", "cmake", "ninja"])
        source = ["download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", LLAMA_CPP]
        _run("llama.cpp", [*pip, *source, "--dest", str(self._folder)])
        [archive] = self._folder.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(self._folder, filter="data")
        [code] = self._folder.glob("llama_cpp_python-*/vendor/llama.cpp")
        build, cmake = str(self._folder / "build"), str(tools / "bin/cmake")
        generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'bin/ninja'}"]
        _run("llama.cpp", [cmake, "-S", str(code), "-B", build, *generator, *CMAKE_OPTIONS])
        jobs = str(os.cpu_count() or 1)
        _run("llama.cpp", [cmake, "--build", build, "-j", jobs, "--target", "llama-server", "llama-quantize"])

    def convert(self, gguf: Path, format_: str, file: Path) -> Path:
        """A GGUF file in another format (BF16, Q8_0, Q4_0). Raises PeerMissing."""
        if not file.is_file():
            quantize = str(self._bin / "llama-quantize")
            part = file.with_suffix(".part")
            _run("llama.cpp", [quantize, "--allow-requantize", "--pure", str(gguf), str(part), format_])
            part.rename(file)
        return file

    def command(self, gguf: Path, port: int, name: str, num_sequences: int, max_tokens: int) -> list[str]:
        """A server for so many sequences of so many tokens each, on all cores."""
        cores = str(os.cpu_count() or 1)
        sizes = ["--ctx-size", str(num_sequences * max_tokens), "--parallel", str(num_sequences)]
        place = ["--host", "127.0.0.1", "--port", str(port), "--alias", name]
        return [str(self.server), "--model", str(gguf), "-t", cores, "-tb", cores, *sizes, *place]


def _run(peer: str, command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        end = "\n".join(done.stdout.splitlines()[-8:])
        raise PeerMissing(f"{peer}: {' '.join(command[:4])} … ended with {done.returncode}:\n{end}")
