from __future__ import annotations

import random

import pytest

from inferencemesh.sim.slots import Slots


def test_requests_start_wait_and_are_turned_away() -> None:
    slots: Slots[str] = Slots(2, 1)
    assert [slots.offer(name, 1) for name in "abcd"] == ["start", "start", "wait", "full"]
    assert (slots.running, slots.waiting, slots.peak_running, slots.peak_waiting) == (2, 1, 2, 1)
    assert slots.release(1) == ["c"]
    assert (slots.running, slots.waiting) == (2, 0)


def test_without_a_queue_nothing_waits() -> None:
    slots: Slots[str] = Slots(1, 0)
    assert [slots.offer(name, 1) for name in "ab"] == ["start", "full"]


def test_a_wide_head_is_not_overtaken_and_its_leaving_lets_others_in() -> None:
    slots: Slots[str] = Slots(3, 10)
    assert slots.offer("a", 2) == "start"
    assert slots.offer("wide", 3) == "wait"
    assert slots.offer("b", 1) == "wait"
    assert slots.leave("wide") == ["b"]
    assert slots.running == 3


def test_one_release_may_start_several() -> None:
    slots: Slots[str] = Slots(2, 10)
    slots.offer("wide", 2)
    slots.offer("a", 1)
    slots.offer("b", 1)
    assert slots.release(2) == ["a", "b"]


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="slots"):
        Slots(0, 1)
    with pytest.raises(ValueError, match="queue"):
        Slots(1, -1)


def test_a_long_random_run_keeps_to_the_bounds_and_the_order() -> None:
    rng = random.Random(5)
    slots: Slots[int] = Slots(5, 7)
    widths: dict[int, int] = {}
    running: set[int] = set()
    line: list[int] = []
    for job in range(3000):
        widths[job] = rng.randint(1, 5)
        verdict = slots.offer(job, widths[job])
        if verdict == "start":
            assert not line
            running.add(job)
        elif verdict == "wait":
            line.append(job)
        else:
            assert len(line) == 7
        started: list[int] = []
        if line and rng.random() < 0.2:
            gone = line.pop(rng.randrange(len(line)))
            started += slots.leave(gone)
        if running and rng.random() < 0.8:
            done = running.pop()
            started += slots.release(widths[done])
        assert started == line[: len(started)]
        del line[: len(started)]
        running.update(started)
        assert slots.running == sum(widths[one] for one in running) <= 5
        assert slots.waiting == len(line) <= 7
    assert slots.peak_running == 5
    assert slots.peak_waiting == 7
