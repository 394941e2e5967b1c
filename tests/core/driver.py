"""A hand for the tests: an Admission, a clock that only moves when told, and books of its own."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from inferencemesh.core.admission import Admission, Displaced, Effect, Expired, Granted, Queued, Refused
from inferencemesh.core.model import BackendSpec, BreakerSpec, Limits, ModelSpec, RetrySpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Lease, LeaseState, Request, RequestState

DONE = Outcome(Phase.COMPLETE, "ok")
GONE = Outcome(Phase.BEFORE_HEADERS, "client_gone")


class Mesh:
    """Drives one Admission and believes none of it: ends are counted here, too, and `check` runs at every step."""

    def __init__(
        self,
        backends: Sequence[BackendSpec],
        models: Sequence[ModelSpec],
        tenants: Sequence[TenantSpec] = (),
        limits: Limits | None = None,
        *,
        checks: bool = True,
        breaker: BreakerSpec | None = None,
        retry: RetrySpec | None = None,
        **more: Any,
    ) -> None:
        self.admission = Admission(
            backends,
            models,
            tenants,
            limits or Limits(),
            rng=random.Random(7),
            breaker=breaker,
            retry=retry,
            **more,
        )
        self.now = 0.0
        self.checks = checks
        self.number = 0
        self.running: dict[Request, Lease] = {}
        self.waiting: dict[Request, None] = {}
        self.drains: dict[Lease, None] = {}
        self.ended: dict[Request, str] = {}
        self.refused: dict[Request, str] = {}
        self.order: list[Request] = []  # grants, in order

    # --- what tests do --------------------------------------------------------------------------------------

    def request(self, tenant: str = "t", model: str = "m", *, ttl_s: float = 600.0, **more: Any) -> Request:
        self.number += 1
        return Request(
            more.pop("id", f"r{self.number}"),
            tenant,
            model,
            **more,
            arrived_at=self.now,
            deadline_at=self.now + ttl_s,
        )

    def offer(self, tenant: str = "t", model: str = "m", *, ttl_s: float = 600.0, **more: Any) -> Request:
        request = self.request(tenant, model, ttl_s=ttl_s, **more)
        self.apply(self.admission.offer(request, self.now))
        assert request.state is not RequestState.NEW
        return request

    def cancel(self, request: Request) -> list[Effect]:
        del self.waiting[request]
        self.ended[request] = "client_gone"
        return self.apply(self.admission.cancel(request, GONE, self.now))

    def release(self, request: Request) -> list[Effect]:
        assert request.lease is not None
        return self.apply(self.admission.release(request.lease, self.now))

    def finish(self, request: Request, outcome: Outcome = DONE) -> list[Effect]:
        """The backend's end is seen and the request settled."""
        effects = self.release(request)
        return effects + self.settle(request, outcome)

    def settle(self, request: Request, outcome: Outcome = DONE) -> list[Effect]:
        del self.running[request]
        self.ended[request] = outcome.cause
        return self.apply(self.admission.settle(request, outcome, self.now))

    def abort(self, request: Request) -> Lease:
        """We end it: the slot drains, the request is settled."""
        lease = request.lease
        assert lease is not None
        self.apply(self.admission.drain(lease, self.now))
        self.drains[lease] = None
        self.settle(request, GONE)
        return lease

    def confirm(self, lease: Lease) -> list[Effect]:
        del self.drains[lease]
        return self.apply(self.admission.confirm(lease, "reported", self.now))

    def requeue(self, request: Request, *, full: bool = False, **more: Any) -> list[Effect]:
        lease = self.running.pop(request)
        self.waiting[request] = None
        return self.apply(self.admission.requeue(lease, self.now, full=full, **more))

    def tick(self, seconds: float) -> list[Effect]:
        """Time passes; `expire` is called at each instant that asked for it, as the gate's timer does."""
        until = self.now + seconds
        effects: list[Effect] = []
        while True:
            wake = self.admission.next_wake_at()
            if wake is None or wake > until:
                break
            self.now = max(self.now, wake)
            effects += self.apply(self.admission.expire(self.now))
            again = self.admission.next_wake_at()
            assert again is None or again > self.now, "expire leaves nothing due"
        self.now = until
        return effects

    def apply(self, effects: Iterable[Effect]) -> list[Effect]:
        effects = list(effects)
        for effect in effects:
            request = effect.request
            match effect:
                case Granted(lease=lease):
                    assert request.lease is lease
                    assert lease.state is LeaseState.RUNNING
                    assert self.now < request.deadline_at, "granted at or after its deadline"
                    assert request not in self.running
                    self.waiting.pop(request, None)
                    self.running[request] = lease
                    self.order.append(request)
                case Queued():
                    assert request.state is RequestState.WAITING
                    self.waiting[request] = None
                case Refused(refusal=refusal):
                    assert request.state is RequestState.REFUSED
                    assert request.outcome is None
                    assert 0 < refusal.retry_after_s <= 60
                    self.refused[request] = refusal.code
                case Expired(refusal=refusal) | Displaced(refusal=refusal):
                    assert request.state is RequestState.SETTLED
                    assert request.outcome is not None
                    assert request.outcome.cause == refusal.code
                    assert 0 < refusal.retry_after_s <= 60
                    assert request in self.waiting
                    assert request not in self.ended
                    del self.waiting[request]
                    self.ended[request] = refusal.code
        if self.checks:
            self.check()
        return effects

    # --- what tests see -------------------------------------------------------------------------------------

    def check(self) -> None:
        self.admission.check()
        totals = self.admission.snapshot(self.now).totals
        assert totals.waiting == len(self.waiting)
        assert totals.running == len(self.running)
        assert totals.refused == len(self.refused)
        assert totals.completed + totals.failed + totals.cancelled + totals.expired == len(self.ended)
        assert totals.accepted == len(self.waiting) + len(self.running) + len(self.ended)
        assert all(request.state is RequestState.WAITING for request in self.waiting)
        assert all(request.state is RequestState.RUNNING for request in self.running)

    def backend(self, name: str = "b") -> Any:
        return next(b for b in self.admission.snapshot(self.now).backends if b.name == name)

    def line(self, name: str = "m") -> Any:
        return next(line for line in self.admission.snapshot(self.now).lines if line.model == name)

    def is_free(self) -> None:
        """Nothing is left of anybody (contract A5)."""
        snapshot = self.admission.snapshot(self.now)
        assert not self.waiting
        assert not self.running
        assert not self.drains
        assert all(b.running == b.draining == 0 and b.reserved_for is None for b in snapshot.backends)
        assert all(line.total == 0 and not line.by_tenant for line in snapshot.lines)
        assert snapshot.totals.waiting_bytes == 0
        assert snapshot.totals.grants == snapshot.totals.settled


def one(
    slots: int = 1, *, places: int | None = 16, **model: Any
) -> tuple[list[BackendSpec], list[ModelSpec]]:
    """One backend `b`, one model `m`."""
    return [BackendSpec("b", slots)], [ModelSpec("m", ("b",), max_waiting=places, **model)]
