"""Who owns a slot between our end of a request and the backend's, and on which evidence it is free (B1, B3, B5)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inferencemesh.core.admission import Admission
from inferencemesh.core.events import Event
from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Lease, LeaseState, Request
from inferencemesh.runtime.attempt import Attempt
from inferencemesh.runtime.drain import Drains
from inferencemesh.runtime.gate import Gate
from inferencemesh.runtime.relay import Plan
from inferencemesh.runtime.upstream import DrainSettings
from tests.virtual.loop import VirtualLoop, run

GRACE_S, CLEANUP_S, TOTAL_S = 2.0, 5.0, 60.0
PLAN = Plan(
    stream=True,
    choices=1,
    prefetch="first_content",
    prefetch_max_s=10.0,
    first_content_s=30.0,
    idle_s=30.0,
    total_s=TOTAL_S,
    max_event_bytes=65536,
    strict_marker=False,
)


class Connection:
    """One to a backend that does what the test says."""

    def __init__(self) -> None:
        self.half_closed = self.aborted = self.released = 0
        self.peer_closes: Callable[[], None] = lambda: None
        self.ends: Callable[[], None] = lambda: None

    def half_close(self, on_closed: Callable[[], None], *, on_end: Callable[[], None]) -> None:
        self.half_closed += 1
        self.peer_closes, self.ends = on_closed, on_end

    def abort(self) -> None:
        self.aborted += 1

    def release(self) -> None:
        self.released += 1


class Place:
    """One granted slot, its gate and its drains."""

    def __init__(self, loop: VirtualLoop, policy: str) -> None:
        self.loop = loop
        self.events: list[Event] = []
        self.admission = Admission(
            [BackendSpec("b", 1)], [ModelSpec("m", ("b",))], [TenantSpec("t")], Limits(), rng=random.Random(1)
        )
        self.gate = Gate(self.admission, loop=loop, emit=self.events.append, bug=lambda *_: None)
        self.drains = Drains(self.gate, loop, emit=self.events.append, alarm=lambda *_: None)
        settings = DrainSettings(policy, GRACE_S, CLEANUP_S, overdue_s=30.0)
        self.upstream: Any = type("Upstream", (), {"name": "b", "drain": settings, "degraded": None})()
        self.upstream.engine = type("Silent", (), {"confirm_path": lambda self, attempt_id: None})()
        self.conn: Any = Connection()
        self.request = Request("1", "t", "m", arrived_at=loop.time(), deadline_at=loop.time() + 600)
        self.gate.offer(self.request)
        assert self.request.lease is not None
        self.lease: Lease = self.request.lease

    def attempt(self) -> Attempt:
        budget: Any = type("Budget", (), {"give_back": lambda self, held: None})()
        outlet: Any = None
        return Attempt(
            self.upstream,
            self.lease,
            PLAN,
            outlet,
            attempt_id="a",
            gate=self.gate,
            drains=self.drains,
            held_budget=budget,
            loop=self.loop,
        )

    def adopt(self, *, limit_s: float = TOTAL_S) -> None:
        limit_at = self.loop.time() + limit_s
        self.drains.adopt(self.lease, self.conn, self.upstream, limit_at=limit_at, attempt_id="a")

    async def freed_after(self) -> float:
        """Seconds until the slot is free; nothing else happens meanwhile."""
        began_at = self.loop.time()
        while self.lease.state is not LeaseState.FREED:
            view = self.admission.snapshot(self.loop.time()).backends[0]
            assert (view.running, view.draining, view.free) == (0, 1, 0)
            await asyncio.sleep(0.25)
        return self.loop.time() - began_at


def at_a_place(policy: str, main: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop(5)

    async def whole() -> None:
        place = Place(loop, policy)
        await main(place)
        assert len(place.drains) == 0
        place.gate.settle(place.request, Outcome(Phase.BEFORE_HEADERS, "client_gone"))
        place.admission.check()
        totals = place.admission.snapshot(loop.time()).totals
        assert totals.grants == totals.settled == 1
        place.gate.close()

    run(loop, whole())


def test_grace_counts_from_the_peers_own_close() -> None:
    async def main(place: Place) -> None:
        place.adopt()
        await asyncio.sleep(3.0)
        assert place.lease.state is LeaseState.DRAINING
        place.conn.peer_closes()
        assert await place.freed_after() == pytest.approx(GRACE_S, abs=0.3)

    at_a_place("grace", main)


def test_a_peer_that_does_not_close_is_not_believed_to_have_stopped() -> None:
    async def main(place: Place) -> None:
        place.adopt()
        assert await place.freed_after() == pytest.approx(TOTAL_S, abs=0.3)
        assert place.conn.aborted
        assert any(type(event).__name__ == "CleanupOverdue" for event in place.events)

    at_a_place("grace", main)


def test_worst_case_does_not_believe_a_close() -> None:
    async def main(place: Place) -> None:
        place.adopt()
        place.conn.peer_closes()
        assert await place.freed_after() == pytest.approx(TOTAL_S, abs=0.3)

    at_a_place("worst_case", main)


@pytest.mark.parametrize("closes", [True, False])
def test_an_engine_that_can_be_asked_has_time_to_answer_after_a_deadline(closes: bool) -> None:
    """A request that ends at its limit has told the engine only then (B5)."""

    async def main(place: Place) -> None:
        place.adopt(limit_s=0.0)
        if closes:
            place.conn.peer_closes()
        assert await place.freed_after() >= CLEANUP_S

    at_a_place("confirm", main)


@pytest.mark.parametrize("policy", ["grace", "worst_case"])
def test_a_request_that_ends_at_its_limit_has_its_grace_all_the_same(policy: str) -> None:
    """Its backend learns of the end only then."""

    async def main(place: Place) -> None:
        place.adopt(limit_s=0.0)
        if policy == "worst_case":
            place.conn.peer_closes()
        due_s = GRACE_S if policy == "worst_case" else CLEANUP_S + GRACE_S
        assert await place.freed_after() == pytest.approx(due_s, abs=0.3)

    at_a_place(policy, main)


@pytest.mark.parametrize("policy", ["grace", "worst_case"])
def test_the_backends_own_end_frees_at_once(policy: str) -> None:
    async def main(place: Place) -> None:
        place.adopt()
        place.conn.ends()
        place.conn.ends()
        place.conn.peer_closes()
        assert await place.freed_after() == 0.0

    at_a_place(policy, main)


def test_trust_frees_at_once() -> None:
    async def main(place: Place) -> None:
        place.adopt()
        assert await place.freed_after() == 0.0

    at_a_place("trust", main)


def test_an_attempt_that_was_sent_leaves_its_slot_draining() -> None:
    async def main(place: Place) -> None:
        attempt = place.attempt()
        attempt.conn, attempt.sent = place.conn, True
        attempt.dispatched_at = place.loop.time()
        attempt.close()
        attempt.close()
        assert place.lease.state is LeaseState.DRAINING
        assert place.conn.half_closed == 1
        place.conn.peer_closes()
        await place.freed_after()

    at_a_place("grace", main)


def test_an_attempt_that_was_not_sent_gives_back_slot_and_connection() -> None:
    async def main(place: Place) -> None:
        attempt = place.attempt()
        attempt.conn = place.conn
        attempt.close()
        assert await place.freed_after() == 0.0
        assert (place.conn.released, place.conn.half_closed, place.conn.aborted) == (1, 0, 0)

    at_a_place("worst_case", main)


def test_an_attempt_that_the_backend_has_ended_gives_back_its_slot() -> None:
    async def main(place: Place) -> None:
        attempt = place.attempt()
        attempt.conn, attempt.sent, attempt.ended = place.conn, True, True
        attempt.close()
        assert await place.freed_after() == 0.0
        assert place.conn.half_closed == 0

    at_a_place("worst_case", main)


def test_time_in_which_the_caller_takes_nothing_is_not_the_backends() -> None:
    """The gap between two events counts from when the caller reads again (C7)."""

    async def main(place: Place) -> None:
        attempt = place.attempt()
        attempt.dispatched_at = attempt.head_at = attempt.first_content_at = attempt.last_at = (
            place.loop.time()
        )
        attempt.pause()
        await asyncio.sleep(PLAN.idle_s + 10.0)
        attempt.check(place.loop.time())
        attempt.resume()
        attempt.check(place.loop.time())
        await asyncio.sleep(PLAN.idle_s - 1.0)
        attempt.check(place.loop.time())
        assert not attempt.over
        await asyncio.sleep(1.0)
        attempt.check(place.loop.time())
        assert attempt.result is not None
        error = attempt.result.error
        assert error is not None
        assert error.code == "idle_timeout"
        attempt.close()

    at_a_place("grace", main)


def test_a_backend_is_shown_as_degraded_until_its_overdue_drain_is_over() -> None:
    async def main(place: Place) -> None:
        place.adopt()
        for seconds, degraded in ((29.0, None), (2.0, "drain_overdue"), (28.0, "drain_overdue")):
            await asyncio.sleep(seconds)
            place.drains.sweep(place.loop.time())
            assert place.upstream.degraded == degraded
        await place.freed_after()
        assert place.upstream.degraded is None

    at_a_place("worst_case", main)
