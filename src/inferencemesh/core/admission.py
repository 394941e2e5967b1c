"""Admission: who runs, who waits, who is refused. The one place that counts slots and places (contract A, B, D).

A pure state machine. Every call is one synchronous step that takes `now` (monotonic seconds, never falling),
changes the state, and returns what was decided, in order; grants that a step makes possible are in its own
answer. There is no clock, no await, no log here: the gate turns effects into futures, the planner and the
tests drive the same object under virtual time.

The parts: `slots` (a backend's ledger), `line` and `places` (who may wait), `fairqueue` (who is next),
`dispatch` (the loop), `entrance` (what happens at a full line), `estimate` (how long), `breaker`, `retry`,
`deadline`, `routing`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from inferencemesh.core.charge import ChargePolicy, PerSlot
from inferencemesh.core.check import check
from inferencemesh.core.dispatch import Dispatch
from inferencemesh.core.effects import Displaced, Effect, Expired, Granted, Queued, Refusal, Refused
from inferencemesh.core.entrance import judge, refused_outright
from inferencemesh.core.model import (
    BackendSpec,
    BreakerSpec,
    ClassSpec,
    Limits,
    ModelSpec,
    RetrySpec,
    TenantSpec,
)
from inferencemesh.core.outcome import OK, Outcome
from inferencemesh.core.refusal import refuse
from inferencemesh.core.request import InvariantError, Lease, LeaseState, Request, RequestState
from inferencemesh.core.retry import RetryBudget
from inferencemesh.core.served import Served
from inferencemesh.core.slots import BACKOFF_MAX_S, BACKOFF_S, Backend
from inferencemesh.core.snapshot import BackendView, LineView, Snapshot, TenantView, Totals
from inferencemesh.core.state import State
from inferencemesh.core.tenant import Tenant
from inferencemesh.core.upkeep import Upkeep
from inferencemesh.core.view import view

__all__ = [
    "Admission",
    "BackendView",
    "Displaced",
    "Effect",
    "Expired",
    "Granted",
    "InvariantError",
    "LineView",
    "Queued",
    "Refusal",
    "Refused",
    "Snapshot",
    "TenantView",
    "Totals",
]

_NEVER: Final = float("inf")
_REQUEUED: Final = 1e9  # seconds by which a request that came back is ordered before all that never left


class Admission:
    """The admission of one process (scope: what it was given as backends). Not thread-safe, not reentrant."""

    __slots__ = ("_dispatch", "_retries", "_state", "_upkeep")

    def __init__(
        self,
        backends: Iterable[BackendSpec],
        models: Iterable[ModelSpec],
        tenants: Iterable[TenantSpec],
        limits: Limits,
        *,
        rng: random.Random,
        breaker: BreakerSpec | None = None,
        retry: RetrySpec | None = None,
        charge: ChargePolicy | None = None,
        classes: Iterable[ClassSpec] = (),
        floor: float | None = None,
    ) -> None:
        """`charge` measures service (None: one per slot). `floor` makes `classes`, the most urgent first, strict."""
        self._state = State(
            backends,
            models,
            tenants,
            limits,
            rng=rng,
            breaker=breaker or BreakerSpec(),
            charge=charge or PerSlot(),
            classes=classes,
            floor=floor,
        )
        self._dispatch = Dispatch(self._state)
        self._upkeep = Upkeep(self._state, self._dispatch)
        self._retries = RetryBudget(retry or RetrySpec())

    # --- requests -------------------------------------------------------------------------------------------

    def offer(self, request: Request, now: float) -> list[Effect]:
        """Take `request` in, or refuse it: one decision and the reservation with it (contract A4).

        Granted, Queued or Refused for it, before it Displaced of those who gave their place. A grant needs no
        place.
        """
        if request.state is not RequestState.NEW:
            raise InvariantError(f"{request!r} is offered twice")
        effects = self._tick(now)
        state = self._state
        model = state.models.get(request.model)
        if model is None:
            request.state = RequestState.REFUSED
            state.books.refused += 1
            effects.append(Refused(request, Refusal("model_not_found", "there is no such model", 1.0)))
            return effects
        tenant = state.tenant(request.tenant)
        request._line = line = model.line_of(request)
        request._paces = model.prospects_of(request).paces
        if state.groups:
            request._class = state.groups.get(request.class_name)
        code = refused_outright(state, request, model, tenant, now)
        if code is not None:
            return self._refuse(request, code, model, tenant, now, effects)
        request._wait_left_s = line.spec.queue_timeout_s
        claims = line.use_claim(tenant.name, now, request.returns)
        made_way = self._dispatch.make_way(request, model, tenant, now)
        backend = self._grantable(request, model, tenant)
        if backend is not None:
            if claims:
                line.claims.came_back(True)
            self._accept(request, tenant, now)
            lease = self._dispatch.grant_at_once(request, model, tenant, backend, now)
            effects.append(Granted(request, lease))
            self._dispatch.run(now, effects)  # it may have made way for others, too
            return effects
        verdict = judge(state, request, model, tenant, now, claims=claims)
        if claims:
            line.claims.came_back(verdict.code is None)
        if verdict.code is not None:
            self._refuse(request, verdict.code, model, tenant, now, effects)
            if made_way:
                self._dispatch.run(now, effects)
            return effects
        if verdict.victim is not None:
            self._dispatch.displace(verdict.victim, now, effects)
        if verdict.over_bytes and not self._dispatch.make_room(request, tenant, now, effects):
            self._refuse(request, "queue_bytes_full", model, tenant, now, effects)
            self._dispatch.run(now, effects)
            return effects
        self._accept(request, tenant, now)
        request._order = request.arrived_at + request.class_offset_s
        self._dispatch.enter(request, model, tenant, now)
        if request.width > 1 or effects or state.limits.max_running is not None:
            self._dispatch.mark(model.pool)  # it may be its turn: to collect, or because somebody left
        return self._queued(request, now, effects)

    def cancel(self, request: Request, outcome: Outcome, now: float) -> list[Effect]:
        """A waiter leaves the line with `outcome` (client gone, shutdown): settled; its place is free at once (A5).

        Raises:
            InvariantError: it does not wait.
        """
        if request.state is not RequestState.WAITING:
            raise InvariantError(f"{request!r} does not wait")
        self._dispatch.withdraw(request, outcome, now, refund=False)  # first: nothing may grant it any more
        effects = self._tick(now)
        self._dispatch.run(now, effects)
        return effects

    def expire(self, now: float) -> list[Effect]:
        """Expire every waiter whose queue timeout or deadline has come, and make the changes that time alone brings:
        ends of back-off, breakers that half-open; with the grants they allow.
        """  # noqa: D205
        effects = self._tick(now)
        for request in self._state.expiries.due(now):
            self._dispatch.expire(request, now, effects)
        self._dispatch.run(now, effects)
        return effects

    def next_wake_at(self) -> float | None:
        """Return when `expire` is due next, None if never. Ask again after every call."""
        state = self._state
        at = state.next_change_at
        expires_at = state.expiries.next_at()
        if expires_at < at:
            at = expires_at
        alarms = state.alarms
        if alarms and alarms[0][0] < at:
            at = alarms[0][0]
        return at if at < _NEVER else None

    def settle(self, request: Request, outcome: Outcome, now: float) -> list[Effect]:
        """A running request has come to its one outcome (contract B2). Its lease is FREED or DRAINING by then.

        Raises:
            InvariantError: it is not running (settled already, or waiting), or its lease still is.
        """
        lease = request.lease
        if request.state is not RequestState.RUNNING or lease is None:
            raise InvariantError(f"{request!r} is settled, and does not run")
        if lease.state is LeaseState.RUNNING:
            raise InvariantError(f"{request!r} is settled while its lease runs")
        effects = self._tick(now)
        state = self._state
        request.state = RequestState.SETTLED
        request.outcome = outcome
        state.books.running -= 1
        state.books.ended[outcome.kind] += 1
        state.models[request.model].speed.completed(now)
        if outcome.cause == OK:
            self._upkeep.proved(lease, now)
        self._dispatch.run(now, effects)
        return effects

    def may_retry(self, request: Request, reason: str, now: float) -> bool:
        """Whether the request may be tried again (contract A9); books the retry in the budget if so.

        `reason` "full" is always allowed and costs nothing: that was not an attempt (contract B6).
        """
        if reason == "full":
            return True
        if request.attempts >= self._retries.spec.attempts or now >= request.deadline_at:
            return False
        return self._retries.take(now)

    # --- leases ---------------------------------------------------------------------------------------------

    def release(self, lease: Lease, now: float) -> list[Effect]:
        """The backend's own end was seen, or it never heard of the request: FREED. Idempotent (B1, B3)."""
        effects = self._tick(now)
        if lease.state is not LeaseState.FREED:
            self._dispatch.free(lease, now)
            self._dispatch.run(now, effects)
        return effects

    def drain(self, lease: Lease, now: float) -> list[Effect]:
        """We ended it: DRAINING, still counted, until confirmed (contract B5). Idempotent; frees nothing."""
        effects = self._tick(now)
        if lease.state is LeaseState.RUNNING:
            self._dispatch.drain(lease, now)
            self._dispatch.run(now, effects)
        return effects

    def confirm(self, lease: Lease, evidence: str, now: float) -> list[Effect]:
        """The backend is known, or by policy presumed, to have stopped: DRAINING to FREED. Idempotent.

        Raises:
            InvariantError: the lease was not draining: nobody has ended it.
        """
        if lease.state is LeaseState.RUNNING:
            raise InvariantError(f"{lease!r} is confirmed ({evidence}) and was not draining")
        return self.release(lease, now)

    def started(self, lease: Lease, now: float) -> list[Effect]:
        """The backend produced content for `lease`: proof for its believed capacity (contract B6)."""
        effects = self._tick(now)
        if lease.state is LeaseState.RUNNING:
            self._upkeep.proved(lease, now)
            self._dispatch.run(now, effects)
        return effects

    def requeue(
        self, lease: Lease, now: float, *, full: bool, avoid: bool = False, not_before_s: float = 0.0
    ) -> list[Effect]:
        """Put the request of an ended attempt back at the head of its tenant (contract A9, B6).

        It keeps arrival, deadline and what was left of its queue timeout, is outside the line's bound and is
        never displaced; the charge of the undone grant is given back. `full`: the backend's own admission
        refused it, so the believed capacity shrinks to what is held there, and the attempt does not count.
        `avoid`: another backend is taken if any is usable. `not_before_s`: nothing is tried on that backend
        before.

        The lease is FREED or DRAINING; one that still RUNs is freed in the same step, before anybody else
        could be granted the slot: for `full` that is the better order, since the backend has just said that
        it has none.

        Raises:
            InvariantError: the request does not run, or runs under another lease.
        """
        request = lease.request
        if request.state is not RequestState.RUNNING or request.lease is not lease:
            raise InvariantError(f"{request!r} does not run under {lease!r}")
        effects = self._tick(now)
        state = self._state
        dispatch = self._dispatch
        model = state.models[request.model]
        backend = lease.backend
        queue = lease._flow.queue
        request.state = RequestState.NEW
        if lease.state is LeaseState.RUNNING:
            dispatch.free(lease, now, undone=full or not state.charge.corrects)
        else:
            amount = state.charge.undone(lease, lease._charged, full=full)
            if amount:
                queue.correct(lease._flow, -amount, lease.backend)
                lease._charged -= amount
        if full:
            request.attempts -= 1
            request.fulls += 1
            backend.said_full(lease, now, not_before_s)
        if not_before_s > 0:
            backend.keep_quiet(now + not_before_s)
        if avoid:
            request.avoid |= {backend.name}
        state.books.running -= 1
        request._order = request.arrived_at + request.class_offset_s - _REQUEUED
        request._exempt = True
        tenant = state.remember(lease._flow.tenant)  # idle since, it may be forgotten
        dispatch.enter(request, model, tenant, now)
        self._upkeep.changed(backend, now)
        if full and request._expires_at > now:
            # Every backend of its model has sent it back: it may be the request and not the capacity. The next probes
            # belong to others, which prove the capacity again if it is there (G4).
            again = request.fulls - sum(b.usable for b in model.route.backends)
            if again >= 0:
                dispatch.rest(request, now + min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(again, 10)))
        if request._expires_at <= now:
            dispatch.expire(request, now, effects)
            dispatch.run(now, effects)
            return effects
        return self._queued(request, now, effects)

    # --- backends -------------------------------------------------------------------------------------------

    def report(self, backend_name: str, ok: bool, now: float) -> list[Effect]:
        """The result of an attempt, for the breaker. Aborts by callers, 4xx and "full" are no results."""
        effects = self._tick(now)
        self._upkeep.report(self._state.backends[backend_name], ok, now)
        self._dispatch.run(now, effects)
        return effects

    def resize(self, backend_name: str, slots: int, now: float) -> list[Effect]:
        """Change a backend's slots. A shrink below what is held leaves an excess that only falls (A1)."""
        if slots < 0:
            raise ValueError("slots must not be negative")
        effects = self._tick(now)
        backend = self._state.backends[backend_name]
        backend.resize(slots)
        self._upkeep.presence_changed(backend, now)
        self._dispatch.run(now, effects)
        return effects

    def set_up(self, backend_name: str, up: bool, now: float) -> list[Effect]:
        """A probe's verdict. A backend that is down gets no new grants and keeps its ledger."""
        effects = self._tick(now)
        backend = self._state.backends[backend_name]
        backend.up = up
        self._upkeep.presence_changed(backend, now)
        self._dispatch.run(now, effects)
        return effects

    def cordon(self, backend_name: str, on: bool, now: float) -> list[Effect]:
        """Give a backend no new work, or do so again; what runs there goes on."""
        effects = self._tick(now)
        backend = self._state.backends[backend_name]
        backend.cordoned = on
        self._upkeep.presence_changed(backend, now)
        self._dispatch.run(now, effects)
        return effects

    def refuse_all(self, code: str = "shutting_down") -> None:
        """From now on every offer is refused with `code`; who waits or runs is served (contract B7)."""
        self._state.closed = code

    # --- sight ----------------------------------------------------------------------------------------------

    def snapshot(self, now: float) -> Snapshot:
        """Return the state as plain values that add up (contract F2). O(waiters)."""
        return view(self._state, now)

    def check(self) -> None:
        """Verify every invariant against what the books count. Slow: for tests and diagnosis.

        Raises:
            InvariantError: something does not add up.
        """
        check(self._state)

    # --- inside ---------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> list[Effect]:
        """Make the changes that are due by time alone, before anything else is decided."""
        effects: list[Effect] = []
        outrunning = self._state.outrunning
        if outrunning and now > outrunning[0][0]:
            self._dispatch.outrun(now)
            self._dispatch.run(now, effects)
        alarms = self._state.alarms
        if alarms and now >= alarms[0][0]:
            self._dispatch.ring(now)
            self._dispatch.run(now, effects)
        if now >= self._state.next_change_at:
            self._upkeep.elapse(now)
            self._dispatch.run(now, effects)
        return effects

    def _grantable(self, request: Request, model: Served, tenant: Tenant) -> Backend | None:
        """Return the backend that can take a newcomer now.

        Slots that are free while others wait are free because none of them may use them: whoever fits was
        granted in the step that freed them. Only a bound over all backends can hold back somebody who fits,
        and then the newcomer waits like everybody else. It does not overtake a waiter of its own tenant that
        only waits for the tenant's limit, unless its class comes before it.
        """
        first = tenant.parked_for
        if tenant.parked and (first is None or first._order <= request.arrived_at + request.class_offset_s):
            return None
        if not tenant.room_for(request.width):
            return None
        group = request._class
        if group is not None and not (group.admits and group.room_for(request.width)):
            return None
        state = self._state
        most = state.limits.max_running
        if most is not None and (
            state.books.held + request.width > most
            or (model.pool.queue.waiting and self._dispatch.held_back(model.pool))
        ):
            return None
        return model.route.pick(request.width)

    def _accept(self, request: Request, tenant: Tenant, now: float) -> None:
        state = self._state
        state.books.accepted += 1
        state.numbers += 1
        request._seq = state.numbers
        if not tenant.known:
            state.remember(tenant)
        self._retries.asked(now)

    def _refuse(
        self,
        request: Request,
        code: str,
        model: Served,
        tenant: Tenant,
        now: float,
        effects: list[Effect],
    ) -> list[Effect]:
        request.state = RequestState.REFUSED
        self._state.books.refused += 1
        effects.append(Refused(request, refuse(code, request, model, tenant, now)))
        return effects

    def _queued(self, request: Request, now: float, effects: list[Effect]) -> list[Effect]:
        """Finish a step in which `request` has entered the line: Queued in its place, unless it is granted."""
        at = len(effects)
        self._dispatch.run(now, effects)
        if request.state is RequestState.WAITING:
            effects.insert(at, Queued(request))
        return effects
