"""Retries are bounded per request and over all requests (contract A9)."""

from __future__ import annotations

from inferencemesh.core.model import RetrySpec
from inferencemesh.core.retry import RetryBudget
from tests.core.driver import Mesh, one


def test_the_budget_is_a_share_of_the_recent_requests_with_a_floor() -> None:
    budget = RetryBudget(RetrySpec(budget=0.1, window_s=10, burst=3))
    assert [budget.take(0.0) for _ in range(4)] == [True, True, True, False]
    for _ in range(60):
        budget.asked(1.0)
    assert [budget.take(2.0) for _ in range(4)] == [True, True, True, False]  # 6 of 60
    assert not budget.take(9.0)
    assert budget.take(10.5)  # the first three are out of the window
    assert [budget.take(30.0) for _ in range(4)] == [True, True, True, False]


def test_a_budget_of_nothing_allows_nothing() -> None:
    assert not RetryBudget(RetrySpec(budget=0.0)).take(0.0)


def test_attempts_are_bounded_and_full_is_none() -> None:
    mesh = Mesh(*one(1, queue_timeout_s=100), retry=RetrySpec(attempts=2))
    request = mesh.offer()
    assert mesh.admission.may_retry(request, "full", 0)
    mesh.requeue(request, full=True)
    mesh.tick(1)
    assert request.attempts == 1
    assert mesh.admission.may_retry(request, "upstream_reset", mesh.now)
    mesh.requeue(request, full=False, avoid=True)
    assert request.attempts == 2
    assert not mesh.admission.may_retry(request, "upstream_reset", mesh.now)
    assert mesh.admission.may_retry(request, "full", mesh.now)


def test_no_retry_after_the_deadline() -> None:
    mesh = Mesh(*one(1))
    request = mesh.offer(ttl_s=2)
    assert not mesh.admission.may_retry(request, "upstream_reset", 2.0)


def test_a_storm_is_bounded_by_what_was_asked_for() -> None:
    mesh = Mesh(*one(8), checks=False, retry=RetrySpec(attempts=5, budget=0.1, window_s=30, burst=3))
    retried = 0
    for _ in range(200):
        request = mesh.offer()
        while mesh.admission.may_retry(request, "upstream_reset", mesh.now):
            retried += 1
            mesh.requeue(request, full=False)
        mesh.finish(request)
    assert 3 <= retried <= 20
