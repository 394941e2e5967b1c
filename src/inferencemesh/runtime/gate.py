"""The gate: turns the effects of `core.admission` into futures and one timer.

It decides nothing. Every method calls the state machine once, synchronously, and hands what came back to those
who wait: a grant resolves the waiter's future, an expiry or displacement fails it. Nobody else touches admission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inferencemesh.core.admission import Admission
from inferencemesh.core.effects import Displaced, Effect, Expired, Granted, Refused
from inferencemesh.core.errors import MeshError
from inferencemesh.core.events import Drained, Event, WaitEnded
from inferencemesh.core.outcome import Outcome
from inferencemesh.core.request import Lease, LeaseState, Request, RequestState

_MESSAGE_OF_TIMEOUT = "waited too long for a free slot; come back after the time in Retry-After"


class Gate:
    """The one door to admission for the whole process (scope `process`, contract E1).

    `emit` receives events; should it raise, `bug` hears of it and nothing else changes: no waiter may lose its
    grant because a metric failed.
    """

    __slots__ = ("_armed_at", "_bug", "_clock", "_loop", "_raw_emit", "_timer", "_waiting", "admission")

    def __init__(
        self,
        admission: Admission,
        *,
        loop: asyncio.AbstractEventLoop,
        emit: Callable[[Event], None],
        bug: Callable[[str, BaseException], None],
    ) -> None:
        self.admission = admission
        self._loop = loop
        self._clock = loop.time
        self._raw_emit = emit
        self._bug = bug
        self._waiting: dict[Request, asyncio.Future[Lease]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = float("inf")

    # --- entering -------------------------------------------------------------------------------------------

    def offer(self, request: Request) -> None:
        """Take the request in, or refuse it (contract A4: one step, no await).

        Afterwards `request.state` is RUNNING (with `request.lease`) or WAITING (then await `granted`).

        Raises:
            MeshError: it was refused; nothing is held for it.
        """
        refusal: MeshError | None = None
        effects = self.admission.offer(request, self._clock())
        for effect in effects:
            if isinstance(effect, Refused) and effect.request is request:
                refusal = error_of(effect)
        if len(effects) > 1 or refusal is None:
            self._apply(effects)
        if refusal is not None:
            raise refusal
        if request.state is RequestState.WAITING:
            self._waiting[request] = self._loop.create_future()

    async def granted(self, request: Request) -> Lease:
        """Wait for the grant of a request that `offer` or `requeue` took in.

        Cancellation-safe: a grant that arrives in the same turn as the cancellation is given back here.

        Raises:
            MeshError: it lost its place (timeout, deadline, displaced).
        """
        future = self._waiting.get(request)
        if future is None:
            if request.lease is None:
                raise MeshError("internal", "the request is not in the line")
            return request.lease
        try:
            return await future
        except BaseException:
            lease = request.lease
            if lease is not None and lease.state is LeaseState.RUNNING:
                self.release(lease)  # granted, but nothing was sent: free at once
            raise
        finally:
            self._waiting.pop(request, None)

    # --- leaving --------------------------------------------------------------------------------------------

    def release(self, lease: Lease) -> None:
        """The backend's own end was seen, or it never heard of the request. Idempotent (B3)."""
        if lease.state is LeaseState.RUNNING:
            self._apply(self.admission.release(lease, self._clock()))

    def drain(self, lease: Lease) -> None:
        """We ended it: the slots stay counted until the backend is known to have stopped (B5). Idempotent."""
        if lease.state is LeaseState.RUNNING:
            self._apply(self.admission.drain(lease, self._clock()))

    def confirm(self, lease: Lease, evidence: str) -> None:
        """The backend is known, or by policy presumed, to have stopped. Idempotent."""
        if lease.state is not LeaseState.DRAINING:
            return
        now = self._clock()
        since = lease.draining_since
        self._apply(self.admission.confirm(lease, evidence, now))
        self._emit(Drained(lease.backend.name, evidence, now - (since if since is not None else now)))

    def requeue(self, lease: Lease, *, full: bool, avoid: bool = False, not_before_s: float = 0.0) -> None:
        """Put the request of an ended lease back at the head of its line (B6, A9); then await `granted`."""
        request = lease.request
        self._waiting[request] = self._loop.create_future()
        self._apply(
            self.admission.requeue(lease, self._clock(), full=full, avoid=avoid, not_before_s=not_before_s)
        )

    def settle(self, request: Request, outcome: Outcome) -> None:
        """Book the one outcome (B2). A waiter leaves the line; one that lost its place is settled already."""
        future = self._waiting.pop(request, None)
        if future is not None and not future.cancel() and not future.cancelled():
            future.exception()  # seen: nobody awaits it any more
        if request.state is RequestState.WAITING:
            now = self._clock()
            self._apply(self.admission.cancel(request, outcome, now))
            self._emit(WaitEnded(request.model, request.tenant, now - request.arrived_at, outcome.cause))
        elif request.state is RequestState.RUNNING:
            self._apply(self.admission.settle(request, outcome, self._clock()))

    # --- what the shell learns about backends ---------------------------------------------------------------

    def started(self, lease: Lease) -> None:
        """The backend produced content: proof of the believed capacity (B6)."""
        self._apply(self.admission.started(lease, self._clock()))

    def report(self, backend: str, *, ok: bool) -> None:
        """An attempt's result, for the breaker."""
        self._apply(self.admission.report(backend, ok, self._clock()))

    def set_up(self, backend: str, *, up: bool) -> None:
        """A probe's verdict."""
        self._apply(self.admission.set_up(backend, up, self._clock()))

    def may_retry(self, request: Request, reason: str) -> bool:
        """Whether the attempts bound and the retry budget allow another attempt (A9)."""
        return self.admission.may_retry(request, reason, self._clock())

    # --- inside ---------------------------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        """Hand on what a call brought. Any call may have made an instant at which waiters can go on."""
        for effect in effects:
            if isinstance(effect, Granted):
                request = effect.request
                if request.waited_s > 0:
                    self._emit(WaitEnded(request.model, request.tenant, request.waited_s, "granted"))
                future = self._waiting.get(request)
                if future is not None and not future.done():
                    future.set_result(effect.lease)
            elif isinstance(effect, Expired | Displaced):
                request = effect.request
                error = error_of(effect)
                self._emit(
                    WaitEnded(request.model, request.tenant, self._clock() - request.arrived_at, error.code)
                )
                future = self._waiting.get(request)
                if future is not None and not future.done():
                    future.set_exception(error)
        self._arm()

    def _emit(self, event: Event) -> None:
        try:
            self._raw_emit(event)
        except Exception as bug:
            self._bug("an event was lost", bug)

    def _arm(self) -> None:
        wake = self.admission.next_wake_at()
        if wake is not None and wake < self._armed_at:
            self._arm_for(wake)

    def _arm_for(self, wake: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = wake
        self._timer = self._loop.call_at(wake, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._armed_at = float("inf")
        try:
            self._apply(self.admission.expire(self._clock()))
        finally:
            self._arm()

    def close(self) -> None:
        """Stop the timer. Waiters are the business of their exchanges."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def error_of(effect: Refused | Expired | Displaced) -> MeshError:
    """The error that a refused, expired or displaced request is answered with."""
    refusal = effect.refusal
    told: dict[str, float] = {}
    if refusal.place is not None:
        told["place"] = refusal.place
    if refusal.estimate_s is not None:
        told["estimated_wait_seconds"] = round(refusal.estimate_s, 1)
    wrong = refusal.code == "invalid_request"  # too wide: coming back changes nothing
    return MeshError(
        refusal.code,
        refusal.message or _MESSAGE_OF_TIMEOUT,
        param="n" if wrong else None,
        retry_after_s=None if wrong else refusal.retry_after_s,
        told=told,
    )
