"""Tickets of refused callers: whose they are, when they are good, and what is kept for them."""

from __future__ import annotations

import random

from inferencemesh.core.admission import Admission, Effect, Granted, Queued, Refused
from inferencemesh.core.claims import AHEAD_S, KEPT_S, MOST, MOST_OF_ONE, Claims
from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Request


def test_a_ticket_is_good_for_a_while_and_once() -> None:
    claims = Claims()
    claims.add("a", 10.0)
    claims.add("a", 11.0)
    assert not claims.use("a", 9.0, None)  # too early
    assert claims.use("a", 10.0, None)
    assert not claims.use("a", 10.0, None)
    assert claims.due == 1
    assert not claims.use("a", 11.0 + KEPT_S + 0.1, True)  # too late
    assert claims.due == 0


def test_tickets_are_used_and_lapse_by_the_time_told_however_long_before_a_place_is_kept() -> None:
    claims = Claims()
    claims.add("a", 100.0, 90.0)  # a place is kept from 10.0 on
    claims.add("a", 20.0)
    claims.add("b", 20.5)
    assert not claims.use("a", 18.0, True)
    assert claims.due == 3
    assert claims.use("a", 20.0, True), "the earlier one, though it was due later"
    assert not claims.use("a", 21.0, True)
    assert not claims.use("b", 20.5 + KEPT_S + 0.1, True)
    assert claims.due == 1, "what has lapsed keeps no place, whatever is due before it"
    assert claims.use("a", 100.0, True)
    assert claims.spent(100.0)


def test_a_first_try_uses_nobodys_ticket() -> None:
    claims = Claims()
    claims.add("a", 10.0)
    assert not claims.use("a", 10.0, False)
    assert not claims.use("b", 10.0, True)
    assert claims.use("a", 10.0, True)


def test_memory_is_bounded() -> None:
    claims = Claims()
    for _ in range(3 * MOST_OF_ONE):
        claims.add("flood", 50.0)
    assert len(claims._later) == MOST_OF_ONE
    for number in range(3 * MOST):
        claims.add(f"t{number}", 50.0)
    assert len(claims._later) == MOST
    claims.use("x", 50.0 - AHEAD_S, None)
    assert claims.due == MOST
    claims.add("one more", 1e9)  # those that are due are remembered, too
    assert (claims.due, len(claims._later)) == (MOST, 0)
    claims.use("x", 60.0, None)
    assert (claims.due, len(claims._due), len(claims._by_tenant), len(claims._out)) == (0, 0, 0, 0)


class Line:
    """One slot, four places, the tenants a and b."""

    def __init__(self, **spec: object) -> None:
        self.admission = Admission(
            [BackendSpec("b", 1)],
            [ModelSpec("m", ("b",), max_waiting=4, queue_timeout_s=1e6, refuse_hopeless=False, **spec)],  # type: ignore[arg-type]
            [TenantSpec("a"), TenantSpec("b")],
            Limits(),
            rng=random.Random(1),
        )
        self.count = 0
        self.leases: list[Request] = []

    def offer(self, now: float, tenant: str = "a", returns: bool | None = None) -> Effect:
        self.count += 1
        request = Request(str(self.count), tenant, "m", arrived_at=now, deadline_at=1e9, returns=returns)
        effects = self.admission.offer(request, now)
        return next(effect for effect in effects if effect.request is request)

    def end(self, now: float) -> None:
        """Whoever runs ends, and the next begins."""
        leases = [r for r in self.leases if r.outcome is None]
        request = leases[0]
        assert request.lease is not None
        effects = self.admission.release(request.lease, now)
        effects += self.admission.settle(request, Outcome(Phase.COMPLETE, "ok"), now)
        self.leases = [e.request for e in effects if isinstance(e, Granted)]

    def fill(self) -> float:
        """The slot, the line, and one refused; return when that one is to come back."""
        first = self.offer(0.0)
        assert isinstance(first, Granted)
        self.leases = [first.request]
        assert all(isinstance(self.offer(0.0), Queued) for _ in range(4))
        refused = self.offer(0.0)
        assert isinstance(refused, Refused)
        return refused.refusal.retry_after_s


def test_a_place_is_kept_from_first_tries_while_a_ticket_is_due() -> None:
    line = Line()
    at = line.fill()
    line.end(at)
    assert isinstance(line.offer(at, returns=False), Refused)
    assert isinstance(line.offer(at, returns=True), Queued)


def test_at_most_half_of_the_line_is_kept() -> None:
    line = Line()
    at = line.fill()
    for _ in range(10):
        line.offer(0.0)
    for _ in range(4):
        line.end(at)
    queued = [isinstance(line.offer(at, returns=False), Queued) for _ in range(4)]
    assert queued.count(True) >= 2


def test_a_tenant_with_less_than_its_share_gets_a_place_nevertheless() -> None:
    line = Line()
    at = line.fill()
    line.end(at)
    assert isinstance(line.offer(at, tenant="b", returns=False), Queued)


def test_nothing_is_kept_where_that_is_off() -> None:
    line = Line(keeps_places=False)
    at = line.fill()
    line.end(at)
    assert isinstance(line.offer(at, returns=False), Queued)


def test_a_free_slot_is_never_kept() -> None:
    line = Line()
    at = line.fill()
    for _ in range(5):
        line.end(at)
    assert isinstance(line.offer(at, returns=False), Granted)


def test_no_place_of_others_is_kept_for_those_beyond_a_limit_of_their_own() -> None:
    line = Line(max_waiting_per_tenant=2)
    first = line.offer(0.0)
    assert isinstance(first, Granted)
    effects = [line.offer(0.0) for _ in range(10)]
    assert [type(effect) for effect in effects] == [Queued] * 2 + [Refused] * 8
    assert not line.admission._state.models["m"].line.claims._later
