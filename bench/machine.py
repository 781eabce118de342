"""What Linux says about processes: who descends from whom, and who used how much of the cores.

Everything is read from /proc; times are in seconds of one core.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    """`root` and every process below it, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(_fields(stat)[1]), []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """What these processes have used so far; those that have ended count nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = _fields(Path(f"/proc/{pid}/stat"))
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def busy_s() -> float:
    """What all processes of this machine have used since it started."""
    user, nice, system, _idle, _iowait, irq, soft_irq, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + soft_irq) / _TICKS


def pause(root: int) -> None:
    """Stop a whole tree, so that it uses nothing while others are measured."""
    for pid in tree(root):
        _signal(pid, signal.SIGSTOP)


def resume(root: int) -> None:
    """Let a tree that was paused go on, children first, so that parents find them alive."""
    for pid in reversed(tree(root)):
        _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Meter:
    """The cores that the processes below this one, and all others, used while it was open."""

    def __enter__(self) -> Meter:
        self._pids = tree(os.getpid())
        self._started_s, self._busy_s, self._own_s = time.monotonic(), busy_s(), cpu_s(self._pids)
        self.own = self.others = 0.0
        return self

    def __exit__(self, *exception: object) -> None:
        wall_s = max(time.monotonic() - self._started_s, 1e-3)
        # Processes that were started meanwhile count from zero.
        own_s = cpu_s(set(self._pids) | set(tree(os.getpid()))) - self._own_s
        self.own = own_s / wall_s
        self.others = max((busy_s() - self._busy_s - own_s) / wall_s, 0.0)


def wait_quiet(limit: float, timeout_s: float) -> bool:
    """Until all processes together use less than `limit` cores; False if that did not happen in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        before_s, started_s = busy_s(), time.monotonic()
        time.sleep(0.5)
        if (busy_s() - before_s) / (time.monotonic() - started_s) < limit:
            return True
        if time.monotonic() > deadline_s:
            return False


def _fields(stat: Path) -> list[str]:
    """The fields after the name, which may hold anything; the first is the state."""
    return stat.read_text().rpartition(")")[2].split()
