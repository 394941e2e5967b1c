"""Speed, service time and tickets."""

from __future__ import annotations

import random

import pytest

from inferencemesh.core.estimate import HALF_LIFE_S, KNOWN, PRIOR_S, Speed, Tickets, is_hopeless


def run(speed: Speed, count: int, seconds: float, at: float, slots: int = 1) -> float:
    """`count` requests one after the other on each of `slots`; return when they have ended."""
    for _ in range(count):
        speed.busy(slots, at)
        at += seconds
        speed.busy(-slots, at)
        for _ in range(slots):
            speed.completed(at)
    return at


def test_the_prior_holds_before_anything_is_known() -> None:
    speed = Speed()
    assert speed.service_s() == PRIOR_S
    assert speed.per_s(8) == pytest.approx(8 / PRIOR_S)
    assert not speed.known


def test_the_mean_of_what_was_measured() -> None:
    speed = Speed()
    run(speed, KNOWN, 2.0, 0.0)
    assert speed.known
    assert speed.service_s() == pytest.approx(2.0, rel=0.05)
    assert speed.per_s(4) == pytest.approx(2.0, rel=0.05)
    assert speed.at_best_per_s(8) == pytest.approx(4.0, rel=0.05)


def test_long_first_streams_raise_it_no_faster_than_they_last() -> None:
    speed = Speed()
    speed.busy(8, 0.0)
    for at in (5.0, 10.0, 30.0, 60.0):
        speed.busy(0, at)
        assert speed.service_s() <= max(PRIOR_S, at)


def test_slots_count_by_width() -> None:
    speed = Speed()
    at = 0.0
    for _ in range(30):
        speed.busy(3, at)
        at += 2.0
        speed.busy(-3, at)
        speed.completed(at)
    assert speed.service_s() == pytest.approx(6.0, rel=0.05)  # slot-seconds


def test_it_follows_a_change_within_a_few_half_lives() -> None:
    speed = Speed()
    at = run(speed, 50, 1.0, 0.0, slots=4)
    run(speed, 12, 10.0, at, slots=4)  # 120 s: four half-lives
    assert 5.0 < speed.service_s() <= 10.0
    assert HALF_LIFE_S == 30.0


def test_running_streams_count_so_short_finishes_do_not_fool_it() -> None:
    speed = Speed()
    speed.busy(4, 0.0)  # four long ones that do not end
    run(speed, 30, 1.0, 0.0)
    assert speed.service_s() > 4.0


def test_an_idle_hour_does_not_distort_it() -> None:
    speed = Speed()
    at = run(speed, 40, 2.0, 0.0)
    speed.busy(1, at + 3600)
    speed.busy(0, at + 3603)
    assert 1.5 < speed.service_s() < 4.0


def test_the_lines_speed_is_measured_only_while_somebody_waits() -> None:
    speed = Speed()
    run(speed, KNOWN, 1.0, 0.0)
    speed.pace.enter(1000.0)
    at = 1000.0
    for _ in range(40):
        at += 0.5
        speed.pace.granted(at)
    speed.pace.leave(at)
    speed.busy(0, at + 500)
    assert speed.per_s(1) == pytest.approx(2.0, rel=0.05)


def test_hopeless_gives_the_benefit_of_the_doubt() -> None:
    assert not is_hopeless(1000.0, 1, 0.1)  # one departure: anything is possible
    assert is_hopeless(100.0, 16, 60.0)
    assert not is_hopeless(100.0, 16, 70.0)


def test_tickets_increase_by_the_callers_share_of_the_speed_up_to_a_minute() -> None:
    tickets = Tickets(random.Random(1))
    drawn = [tickets.draw("t", 0.0, 2.0, 0.0) for _ in range(300)]
    for index, wait_s in enumerate(drawn[:119]):
        assert (index + 1) / 2 <= wait_s <= (index + 1) / 2 + 0.5
    assert all(30.0 <= wait_s <= 60.0 for wait_s in drawn[120:])
    assert tickets.draw("other", 0.0, 2.0, 0.0) <= 1.0  # a line of its own
    assert 4.0 <= tickets.draw("late", 0.0, 2.0, 7.0) <= 4.5  # seven of its own go first
    assert tickets.draw("t", 600.0, 2.0, 0.0) <= 1.0


def test_tickets_are_bounded_in_memory() -> None:
    tickets = Tickets(random.Random(1), limit=100)
    for number in range(1000):
        tickets.draw(f"t{number}", 0.0, 0.1, 0.0)
    assert len(tickets._next) <= 100


def test_tickets_that_are_out_move_with_the_speed_that_is_known_now() -> None:
    """They are places in a line: ten at one a second are gone in a second when the line moves ten times as fast."""
    tickets = Tickets(random.Random(1))
    for _ in range(10):
        tickets.draw("a", 0.0, 1.0, 0.0)
    assert 1.1 <= tickets.draw("a", 0.0, 10.0, 0.0) <= 1.7
    assert 12.0 <= tickets.draw("a", 0.0, 1.0, 0.0) <= 12.6


def test_a_wide_one_takes_as_many_places() -> None:
    tickets = Tickets(random.Random(1))
    assert 4.0 <= tickets.draw("a", 0.0, 1.0, 0.0, 4) <= 4.6
    assert 5.0 <= tickets.draw("a", 0.0, 1.0, 0.0) <= 5.6
