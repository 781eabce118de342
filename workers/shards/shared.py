"""Memory that ranks on one host share, and what they do through it: `exchange.h` in Python.

The memory has no name. One rank makes it, the others open it through that rank's entry in /proc; so it is
gone with the last of them, however they end, and no limit of /dev/shm applies. Only pages in use take memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path

import torch

from workers.errors import GangLost
from workers.model.native import library

HEADER_BYTES = 64 * 64  # MAX_LANES counters of a cache line each
LIMIT_S = 120.0  # a rank that is lost is noticed long before, by its pulse
TYPES = {torch.float32: 0, torch.bfloat16: 1}
SPINS_ALONE = 20_000  # about 0.3 ms: with a core for every thread, waiting awake is quickest
SPINS_CROWDED = 50  # else whoever is waited for may need this very core


class _Exchange(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("limit_ns", ctypes.c_int64),
        ("waited_ns", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("spins", ctypes.c_int32),
        ("meetings", ctypes.c_uint32),
    )


class _Mailbox(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("limit_ns", ctypes.c_int64),
        ("waited_ns", ctypes.c_int64),
        ("spins", ctypes.c_int32),
        ("letters", ctypes.c_uint32),
    )


def is_available() -> bool:
    return library.load_exchange() is not None


class SharedMemory:
    """So many bytes, zeros at first, mapped here. `path` is where others on this host find it."""

    def __init__(self, num_bytes: int, path: str | None = None) -> None:
        if path is None:
            descriptor = os.memfd_create("headrace-gang")
            os.ftruncate(descriptor, num_bytes)
        else:
            descriptor = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, descriptor)
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.bytes = torch.frombuffer(mmap.mmap(descriptor, num_bytes), dtype=torch.uint8)

    @property
    def address(self) -> int:
        return self.bytes.data_ptr()


class SharedExchange:
    """All-to-all among `size` lanes, this one being `rank`; `capacity` bytes at once, a multiple of 64."""

    def __init__(self, memory: SharedMemory, rank: int, size: int, capacity: int, spins: int) -> None:
        self._memory = memory
        self._library = library.load_exchange()
        self._capacity = capacity
        self._size = size
        self._state = _Exchange(memory.address, capacity, int(LIMIT_S * 1e9), 0, rank, size, spins, 0)
        self.address = ctypes.addressof(self._state)

    @staticmethod
    def bytes_for(size: int, capacity: int) -> int:
        return HEADER_BYTES + 2 * size * capacity

    @property
    def waited_s(self) -> float:
        return float(self._state.waited_ns / 1e9)

    @property
    def num_meetings(self) -> int:
        return int(self._state.meetings)

    def reduce(self, x: torch.Tensor) -> None:
        """x = the sum of every lane's x, in the order of the lanes."""
        assert x.is_contiguous()
        assert self._library is not None
        if self._library.headrace_reduce(self.address, x.data_ptr(), x.numel(), TYPES[x.dtype]):
            raise GangLost(f"a lane did not come to a sum within {LIMIT_S:.0f} s")

    def share(self, mine: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        """Bring bytes; returns every lane's, `sizes[i]` of lane i, good until the next call of any kind."""
        assert self._library is not None
        meeting = self._state.meetings
        if self._library.headrace_share(self.address, mine.data_ptr(), mine.nbytes):
            raise GangLost(f"a lane did not come to an exchange within {LIMIT_S:.0f} s")
        first = HEADER_BYTES + (meeting & 1) * self._size * self._capacity
        places = [first + rank * self._capacity for rank in range(self._size)]
        return [self._memory.bytes[at : at + size] for at, size in zip(places, sizes, strict=True)]

    @property
    def capacity(self) -> int:
        return self._capacity


class SharedMailbox:
    """From one rank to another; who takes and who puts is theirs to know."""

    def __init__(self, memory: SharedMemory, capacity: int, spins: int) -> None:
        self._memory = memory
        self._library = library.load_exchange()
        self._state = _Mailbox(memory.address, capacity, int(LIMIT_S * 1e9), 0, spins, 0)

    @staticmethod
    def bytes_for(capacity: int) -> int:
        return HEADER_BYTES + 2 * capacity

    @property
    def waited_s(self) -> float:
        return float(self._state.waited_ns / 1e9)

    @property
    def num_letters(self) -> int:
        return int(self._state.letters)

    def put(self, x: torch.Tensor) -> None:
        assert x.is_contiguous()
        assert self._library is not None
        if self._library.headrace_put(ctypes.addressof(self._state), x.data_ptr(), x.nbytes):
            raise GangLost(f"the next stage took nothing within {LIMIT_S:.0f} s")

    def take(self, x: torch.Tensor) -> None:
        assert x.is_contiguous()
        assert self._library is not None
        if self._library.headrace_take(ctypes.addressof(self._state), x.data_ptr(), x.nbytes):
            raise GangLost(f"the stage before sent nothing within {LIMIT_S:.0f} s")


def spins(num_threads: int) -> int:
    """How long to wait awake where ranks of this gang have so many threads on this host."""
    return SPINS_ALONE if num_threads <= len(os.sched_getaffinity(0)) else SPINS_CROWDED


def machine_id() -> str:
    """Equal for two processes if and only if one can open the other's memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return f"{os.uname().nodename}-{os.getpid()}"
    return f"{boot.read_text().strip()}-{os.readlink('/proc/self/ns/pid')}-{os.getuid()}"
