"""What the kernel says about processes: CPU time in nanoseconds, memory, children. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
Threads = dict[int, int]  # thread id -> nanoseconds on a CPU since it started


def threads_ns(pids: Iterable[int], proc: Path = PROC) -> Threads:
    """Run time of every thread of the given processes, user and kernel together.

    From the scheduler's own clock (`schedstat`): `utime` and `stime` of /proc/PID/stat count in ticks of
    10 ms, too coarse for windows of a second. A thread or process that has ended is left out.
    """
    found: Threads = {}
    for pid in pids:
        tasks = f"{proc}/{pid}/task"
        try:
            names = os.listdir(tasks)
        except OSError:
            continue
        for name in names:
            try:
                with open(f"{tasks}/{name}/schedstat", "rb") as stat:
                    found[int(name)] = int(stat.read().split()[0])
            except (OSError, IndexError):
                continue
    return found


def spent_ns(before: Threads, after: Threads) -> int:
    """CPU time between two readings; a thread that is only in the second one counts from zero."""
    return sum(now - before.get(thread, 0) for thread, now in after.items())


def pss_kib(pids: Iterable[int], proc: Path = PROC) -> int:
    """Memory of the processes, pages that they share counted once (proportional set size), in KiB."""
    return sum(_field(proc / str(pid) / "smaps_rollup", "Pss:") for pid in pids)


def rss_kib(pids: Iterable[int], proc: Path = PROC) -> int:
    """Resident memory, shared pages counted for each process, in KiB."""
    return sum(_field(proc / str(pid) / "status", "VmRSS:") for pid in pids)


def _field(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def tree(root: int, proc: Path = PROC) -> list[int]:
    """The process and all its descendants that live now, the root first."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        try:
            stat = (proc / name / "stat").read_text()
        except OSError:
            continue
        # The name in parentheses may hold anything; what follows the last one is well formed.
        parent = int(stat.rpartition(")")[2].split()[1])
        parents.setdefault(parent, []).append(int(name))
    found, ahead = [], [root]
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead.extend(parents.get(pid, ()))
    return found
