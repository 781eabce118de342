"""The processes that this one has started, directly or not, and their certain end.

As a subreaper this process inherits what its children leave behind, so that nothing started by it can
slip away by losing its parent. Linux only; elsewhere only direct descendants are seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> set[int]:
    """Every process below this one that has not ended."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found: set[int] = set()
    front = [os.getpid()]
    while front:
        front = [child for parent in front for child in children.get(parent, []) if child not in found]
        found.update(front)
    return found


def end_all(grace_s: float) -> int:
    """Ask every descendant to end, and kill those that have not after `grace_s`; returns how many."""
    num_asked = _signal(descendants(), signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while descendants() and time.monotonic() < deadline:
        _reap()
        time.sleep(0.02)
    while left := descendants():
        _signal(left, signal.SIGKILL)
        _reap()
        time.sleep(0.01)
    _reap()
    return num_asked


def _signal(pids: set[int], number: int) -> int:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
