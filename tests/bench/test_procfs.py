from __future__ import annotations

import os
import time
from pathlib import Path

from bench import procfs


def _fake_proc(root: Path, pid: int, parent: int, name: str = "x") -> None:
    (root / str(pid) / "task" / str(pid)).mkdir(parents=True)
    (root / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 0 0")
    (root / str(pid) / "task" / str(pid) / "schedstat").write_text(f"{pid * 1000} 0 1\n")
    (root / str(pid) / "smaps_rollup").write_text("00-ff ---p\nRss: 90 kB\nPss: 40 kB\nPss_Anon: 7 kB\n")
    (root / str(pid) / "status").write_text("Name: x\nVmRSS:\t   90 kB\n")


def test_a_tree_has_all_descendants(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (20, 1)):
        _fake_proc(tmp_path, pid, parent, name="a) S 99 (b")
    assert sorted(procfs.tree(10, tmp_path)) == [10, 11, 12]
    assert procfs.tree(10, tmp_path)[0] == 10


def test_memory_is_summed_over_processes(tmp_path: Path) -> None:
    _fake_proc(tmp_path, 10, 1)
    _fake_proc(tmp_path, 11, 10)
    assert procfs.pss_kib([10, 11], tmp_path) == 80
    assert procfs.rss_kib([10, 11, 12], tmp_path) == 180  # 12 is gone


def test_threads_that_come_and_go(tmp_path: Path) -> None:
    _fake_proc(tmp_path, 10, 1)
    assert procfs.threads_ns([10, 99], tmp_path) == {10: 10_000}
    assert procfs.spent_ns({1: 100, 2: 50}, {1: 150, 3: 7}) == 57


def test_our_own_clock_runs() -> None:
    before = procfs.threads_ns([os.getpid()])
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    assert procfs.spent_ns(before, procfs.threads_ns([os.getpid()])) > 5_000_000
