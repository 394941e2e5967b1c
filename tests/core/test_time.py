"""Deadlines and timeouts of waiters, hopeless requests, and when to come back (contract A7, A8, A10)."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from inferencemesh.core.admission import Expired, Refused
from inferencemesh.core.deadline import Expiries
from inferencemesh.core.request import Request, RequestState
from tests.core.driver import Mesh, one


def test_no_grant_at_or_after_the_deadline() -> None:
    mesh = Mesh(*one(1, queue_timeout_s=100))
    running = mesh.offer()
    late = mesh.offer(ttl_s=5)
    good = mesh.offer(ttl_s=50)
    mesh.now = 5.0  # nobody has called `expire`
    effects = mesh.finish(running)
    assert [type(effect) for effect in effects] == [Expired, type(effects[1])]
    assert mesh.ended[late] == "deadline_exceeded"
    assert good in mesh.running


def test_the_earlier_of_timeout_and_deadline_is_named() -> None:
    mesh = Mesh(*one(1, queue_timeout_s=10))
    mesh.offer()
    by_timeout, by_deadline, both = mesh.offer(), mesh.offer(ttl_s=9), mesh.offer(ttl_s=10)
    assert mesh.admission.next_wake_at() == 9
    mesh.tick(9)
    assert mesh.ended == {by_deadline: "deadline_exceeded"}
    mesh.tick(1)
    assert mesh.ended[by_timeout] == "queue_timeout"
    assert mesh.ended[both] == "deadline_exceeded"
    assert mesh.admission.next_wake_at() is None


def test_those_who_left_wake_nobody() -> None:
    mesh = Mesh(*one(1))
    running, first, second = mesh.offer(), mesh.offer(ttl_s=3), mesh.offer(ttl_s=6)
    mesh.cancel(first)
    assert mesh.admission.next_wake_at() == 6
    mesh.finish(running)
    assert second in mesh.running
    assert mesh.admission.next_wake_at() is None


def test_expiries_stay_as_small_as_the_line() -> None:
    expiries = Expiries()
    waiting: list[Request] = []
    for number in range(5000):
        request = Request("r", "t", "m", arrived_at=0, deadline_at=1e9)
        request.state = RequestState.WAITING
        request._seq = number
        request._expires_at = float(number % 97)
        waiting.append(request)
        if len(waiting) > 20:
            waiting.pop(0).state = RequestState.RUNNING
        expiries.add(request, len(waiting))
        assert len(expiries) <= 2 * len(waiting) + 64
    assert expiries.next_at() == min(request._expires_at for request in waiting)
    due = []
    for request in expiries.due(1000.0):
        request.state = RequestState.SETTLED
        due.append(request)
    assert sorted(due, key=lambda request: request._seq) == waiting
    assert expiries.next_at() == float("inf")


def warm(mesh: Mesh, seconds: float = 10.0) -> None:
    """Twenty completions of that service time."""
    for _ in range(20):
        request = mesh.offer("warm")
        mesh.tick(seconds)
        mesh.finish(request)


def test_the_hopeless_are_refused_on_arrival() -> None:
    mesh = Mesh(*one(1, places=50, queue_timeout_s=1000))
    warm(mesh)
    mesh.offer()
    for _ in range(20):
        assert mesh.offer().state is RequestState.WAITING
    refused = mesh.offer(ttl_s=30)  # about 210 s, at best 150
    assert mesh.refused == {refused: "deadline_unreachable"}
    assert mesh.offer(ttl_s=190).state is RequestState.WAITING  # not by an optimistic estimate


def test_never_before_twenty_completions_are_known() -> None:
    mesh = Mesh(*one(1, places=50))
    for _ in range(25):
        mesh.offer()
    assert mesh.offer(ttl_s=0.1).state is RequestState.WAITING


def test_never_while_a_slot_is_free_or_nobody_waits() -> None:
    mesh = Mesh(*one(2, places=50, queue_timeout_s=1000))
    warm(mesh)
    assert mesh.offer(ttl_s=0.01).state is RequestState.RUNNING
    mesh.offer()
    assert mesh.offer(ttl_s=0.01).state is RequestState.WAITING  # the first in line


def test_the_queue_timeout_makes_nobody_hopeless() -> None:
    mesh = Mesh(*one(1, places=50, queue_timeout_s=1))
    warm(mesh)
    mesh.offer()
    for _ in range(20):
        mesh.offer()
    assert not mesh.refused


def test_it_can_be_switched_off() -> None:
    mesh = Mesh(*one(1, places=50, refuse_hopeless=False))
    warm(mesh)
    mesh.offer()
    for _ in range(20):
        mesh.offer(ttl_s=0.1)
    assert not mesh.refused


def test_a_newcomer_with_less_than_its_share_is_not_judged_by_anothers_backlog() -> None:
    mesh = Mesh(*one(1, places=50, queue_timeout_s=1000))
    warm(mesh)
    mesh.offer("flood")
    for _ in range(30):
        mesh.offer("flood")
    assert mesh.offer("small", ttl_s=30).state is RequestState.WAITING


def test_retry_after_is_spread_and_follows_the_speed_of_the_line() -> None:
    mesh = Mesh(*one(4, places=4, queue_timeout_s=1000), checks=False)
    warm(mesh, 2.0)  # four slots, two seconds each: two a second
    for _ in range(8):
        mesh.offer()
    waits = []
    for _ in range(40):
        effects = mesh.admission.offer(mesh.request(), mesh.now)
        assert isinstance(effects[0], Refused)
        waits.append(effects[0].refusal.retry_after_s)
    assert all(0 < wait <= 60 for wait in waits)
    assert waits == sorted(waits) or max(b - a for a, b in pairwise(waits)) < 1.1
    assert waits[0] < 3
    assert waits[-1] == pytest.approx(21, abs=3)  # about two a second are told to return
    seconds = [int(wait) for wait in waits]
    assert max(seconds.count(second) for second in set(seconds)) <= 4


def test_retry_after_stays_within_a_minute_and_memory_within_bounds() -> None:
    mesh = Mesh(*one(1, places=0), checks=False)
    mesh.offer()
    for number in range(6000):
        effects = mesh.admission.offer(mesh.request(f"t{number}"), mesh.now)
        assert isinstance(effects[0], Refused)
        assert 0 < effects[0].refusal.retry_after_s <= 60
    assert len(mesh.admission._state.models["m"].usual.tickets._next) <= 4096
    assert len(mesh.admission._state.tenants) == 1


def test_what_callers_are_told_is_mostly_true() -> None:
    """A saturated model, callers that come back when told: few come back in vain (theory: 0.9 at a steady load)."""
    rng = random.Random(5)
    mesh = Mesh(*one(8, places=8, queue_timeout_s=1000), checks=False)
    ends: list[tuple[float, int, Request]] = []
    returns: list[tuple[float, int]] = [(0.0, number) for number in range(150)]
    came_back = 0
    in_vain = 0
    number = 150
    while returns or ends:
        if ends and (not returns or min(ends)[0] <= min(returns)[0]):
            at, _, request = min(ends)
            ends.remove((at, _, request))
            mesh.now = max(mesh.now, at)
            before = len(mesh.order)
            mesh.finish(request)
        else:
            at, _ = min(returns)
            returns.remove((at, _))
            mesh.now = max(mesh.now, at)
            before = len(mesh.order)
            request = mesh.request()
            effects = mesh.apply(mesh.admission.offer(request, mesh.now))
            came_back += at > 0
            if isinstance(effects[-1], Refused):
                in_vain += at > 0
                number += 1
                returns.append((mesh.now + effects[-1].refusal.retry_after_s, number))
        for granted in mesh.order[before:]:
            number += 1
            ends.append((mesh.now + rng.uniform(1.0, 3.0), number, granted))
        assert number < 5000
    assert in_vain <= 0.1 * came_back
    mesh.is_free()
