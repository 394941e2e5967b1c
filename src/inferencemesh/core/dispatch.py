"""Places in, slots out: every change of the books, and the loop that keeps the slots busy (contract A4, A5, D2).

Whatever frees something marks its pool; `run` then grants until no eligible waiter fits any more. A wide
waiter whose turn has come and who does not fit is pulled out of the fair line and *collects*: one backend
gives nothing to anybody else until it fits there (contract A13). Tenants at their own limit are parked
(contract D1).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from inferencemesh.core.breaker import BreakerState
from inferencemesh.core.effects import Displaced, Effect, Expired, Granted
from inferencemesh.core.entrance import next_to_give_bytes
from inferencemesh.core.flow import Need
from inferencemesh.core.moves import Moves
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.pool import Collecting, Pool
from inferencemesh.core.refusal import refuse
from inferencemesh.core.request import Request, RequestState
from inferencemesh.core.served import Served
from inferencemesh.core.slots import Backend
from inferencemesh.core.tenant import Tenant

COLLECT_S = 1.0  # the least time that a wide waiter may keep slots from others


class Dispatch(Moves):
    """The moves, and the loop. After each public call of admission no pool is left marked."""

    __slots__ = ()

    # --- leaving --------------------------------------------------------------------------------------------

    def withdraw(self, request: Request, outcome: Outcome, now: float, *, refund: bool) -> None:
        """A waiter is gone for good: settle it. What it had collected goes to others with the next `run`.

        `refund` gives a collecting waiter's charge back; one that leaves by itself has kept slots from
        others.
        """
        state = self.state
        model = state.models[request.model]
        pool = model.pool
        place = request._place
        assert place is not None  # noqa: S101 - every waiter has one
        tenant = place.tenant
        lane = request._lane
        request._alarm_at = None
        if request in pool.resting:
            del pool.resting[request]
            self._leave_line(request, now)
            state.forget(tenant)
        elif lane is None:
            self._leave_line(request, now)
            self._uncollect(pool, pool.collecting[request], now, refund=refund)
        else:
            pool.queue.remove(request)
            self._leave_line(request, now)
            if lane.flow.idle:
                pool.queue.rest(lane.flow)
        request.state = RequestState.SETTLED
        request.outcome = outcome
        state.books.ended[outcome.kind] += 1
        group = request._class
        if group is not None and group.waits_for is request:
            group.waits_for = None
            for other in state.pools:
                self.mark(other)
        if tenant.parked_for is request:
            tenant.parked_for = None
            self._unpark(tenant)
        if state.limits.max_running is not None:
            self.mark(pool)  # it may have been the one whose width all others waited for

    def displace(self, victim: Request, now: float, effects: list[Effect]) -> None:
        """`victim` gives its place to a tenant that has less than its share (contract D8)."""
        place = victim._place
        assert place is not None  # noqa: S101 - every waiter has one
        self.withdraw(victim, Outcome(Phase.BEFORE_HEADERS, "displaced"), now, refund=True)
        model = self.state.models[victim.model]
        effects.append(Displaced(victim, refuse("displaced", victim, model, place.tenant, now)))

    def make_room(self, request: Request, tenant: Tenant, now: float, effects: list[Effect]) -> bool:
        """Displace until the bytes of `request` fit; it is within its tenant's share of them."""
        state = self.state
        while state.books.waiting_bytes + request.size_bytes > state.limits.max_waiting_bytes:
            victim = next_to_give_bytes(state, tenant)
            if victim is None:
                return False
            self.displace(victim, now, effects)
        return True

    # --- collecting -----------------------------------------------------------------------------------------

    def _collect(self, pool: Pool, request: Request, backend: Backend, now: float) -> None:
        """Pull the winner out of the fair line, charged, and keep `backend` for it, for a time.

        Slots that come free stay idle meanwhile. Its tenant pays for them (`_idle_cost`), and a waiter that has not
        got its width within twice a mean service time makes way for the others whose turn that makes it. The next
        time it may keep them twice as long, so that it is not overtaken for ever.
        """
        lane = request._lane
        assert lane is not None  # noqa: S101 - it has just won
        flow = lane.flow
        tenant = flow.tenant
        queue = pool.queue
        key = queue.start_of(lane)
        queue.remove(request)
        charged = self.state.charge.at_dispatch(request)
        queue.hold(flow)  # before the charge: what is idle may be forgotten by it
        # Virtual time does not follow it: it is not in service yet, and what it has paid for idle slots must not lift
        # those who come meanwhile.
        queue.charge(flow, charged, queue.v, backend)
        backend.reserved_for = request
        request._reserved = backend
        tenant.collecting += request.width
        if request._class is not None:
            request._class.held += request.width
        self.state.books.held += request.width
        pool.collecting[request] = Collecting(request, flow, backend, charged, key, now)
        patience_s = max(COLLECT_S, 2.0 * self.state.models[request.model].speed.service_s())
        self._alarm(request, now + patience_s * 2.0 ** min(request._collects, 10))
        if tenant.max_running is not None and tenant.held >= tenant.max_running:
            self._park(tenant, None)

    def _idle_cost(self, item: Collecting, now: float) -> float:
        """What the slots that were kept have cost the others, in the unit of the charge."""
        service_s = self.state.models[item.request.model].speed.service_s()
        return self.state.charge.idle(max(0.0, now - item.since) * item.request.width, service_s)

    def _uncollect(self, pool: Pool, item: Collecting, now: float, *, refund: bool) -> None:
        """The reservation ends without a grant."""
        request = item.request
        tenant = item.flow.tenant
        del pool.collecting[request]
        item.backend.reserved_for = None
        request._reserved = None
        tenant.collecting -= request.width
        if request._class is not None:
            self._give_back(request._class, request.width)
        self.state.books.held -= request.width
        # The exact cost is what was kept from others, and no more.
        refund = refund or self.state.charge.corrects
        amount = self._idle_cost(item, now) - (item.charged if refund else 0.0)
        pool.queue.correct(item.flow, amount, item.backend)
        pool.queue.unhold(item.flow)
        if tenant.parked:
            self._unpark(tenant)
        self.mark(pool)

    def _back_to_the_line(self, pool: Pool, item: Collecting, now: float) -> None:
        request = item.request
        request._alarm_at = None
        pool.queue.add(request, self.state.models[request.model], item.flow.tenant)
        self._uncollect(pool, item, now, refund=True)
        self._come_first(request, item.flow.tenant)

    def make_way(self, request: Request, model: Served, tenant: Tenant, now: float) -> bool:
        """Whether a newcomer whose turn comes before a collecting waiter's makes that one go back to the line.

        What a collecting waiter keeps, it keeps from those that come after it in the order of service. One whose
        tenant has paid for idle slots stands behind the others until they have been served as much.
        """
        pool = model.pool
        if not pool.collecting:
            return False
        key = pool.queue.lifted(tenant, model, request)
        band = request._class.band if request._class is not None else 0
        first = tenant.comes_first(request.width)
        moved = False
        for item in list(pool.collecting.values()):
            other = item.flow.tenant
            theirs = item.request._class.band if item.request._class is not None else 0
            before = key < item.key if first is other.comes_first(0) else first  # its own slots count already
            before = before if band == theirs else band < theirs
            if before and other is not tenant and item.backend in model.route.backends:
                self._back_to_the_line(pool, item, now)
                moved = True
        return moved

    def rest(self, request: Request, until: float) -> None:
        """Take a waiter out of the fair line until then; its place in the line stays its own."""
        pool = self.state.models[request.model].pool
        lane = request._lane
        assert lane is not None  # noqa: S101 - it has just entered
        pool.queue.remove(request)
        pool.resting[request] = None
        if lane.flow.idle:
            pool.queue.rest(lane.flow)
        self._alarm(request, until)

    def _alarm(self, request: Request, at: float) -> None:
        request._alarm_at = at
        alarms = self.state.alarms
        if len(alarms) > 2 * self.state.books.waiting + 64:  # most were set by who has left
            alarms[:] = [kept for kept in alarms if kept[2]._alarm_at == kept[0]]
            heapify(alarms)
        heappush(alarms, (at, request._seq, request))

    def ring(self, now: float) -> None:
        """Do what is due: the rested come back to the fair line, collecting waiters make way."""
        alarms = self.state.alarms
        while alarms and alarms[0][0] <= now:
            at, _, request = heappop(alarms)
            if request._alarm_at != at or request.state is not RequestState.WAITING:
                continue
            request._alarm_at = None
            model = self.state.models[request.model]
            pool = model.pool
            if request in pool.resting:
                del pool.resting[request]
                place = request._place
                assert place is not None  # noqa: S101 - every waiter has one
                pool.queue.add(request, model, place.tenant)
                self._come_first(request, place.tenant)
            elif request in pool.collecting:
                request._collects += 1
                self._back_to_the_line(pool, pool.collecting[request], now)
            self.mark(pool)

    def recheck(self, backend: Backend, now: float) -> None:
        """After a change of `backend`: its collecting waiter goes back to the line if it can never fit there."""
        request = backend.reserved_for
        if request is None or (
            backend.usable
            and backend.breaker.state is BreakerState.CLOSED
            and backend.capacity >= request.width
        ):
            return
        pool = self.state.pool_of[backend]
        self._back_to_the_line(pool, pool.collecting[request], now)

    # --- time -----------------------------------------------------------------------------------------------

    def expire(self, request: Request, now: float, effects: list[Effect]) -> None:
        """A waiter's time has come: its deadline, or else its queue timeout."""
        code = "deadline_exceeded" if now >= request.deadline_at else "queue_timeout"
        place = request._place
        assert place is not None  # noqa: S101 - every waiter has one
        self.withdraw(request, Outcome(Phase.BEFORE_HEADERS, code), now, refund=True)
        refusal = refuse(code, request, self.state.models[request.model], place.tenant, now)
        effects.append(Expired(request, refusal))

    # --- the loop -------------------------------------------------------------------------------------------

    def held_back(self, pool: Pool) -> bool:
        """Whether somebody's turn has come who only waits for the bound over all backends."""
        return pool.queue.winner(servable) is not None

    def run(self, now: float, effects: list[Effect]) -> None:
        """Grant what can be granted in the marked pools. A waiter met past its deadline is expired instead."""
        dirty = self._dirty
        while dirty:
            pool = dirty.pop(0)
            pool.dirty = False
            if pool.collecting:
                self._serve_collecting(pool, now, effects)
            while pool.queue.waiting and self._serve_next(pool, now, effects):
                pass

    def _serve_next(self, pool: Pool, now: float, effects: list[Effect]) -> bool:
        """Do what the fair line's next step is; return False if there is none."""
        queue = pool.queue
        lane = queue.winner(servable)
        if lane is None:
            return False
        request = lane.head()
        if request.deadline_at <= now:
            self.expire(request, now, effects)
            return True
        flow = lane.flow
        tenant = flow.tenant
        width = request.width
        if not tenant.room_for(width):
            self._park(tenant, request)
            return True
        state = self.state
        group = request._class
        if group is not None and not group.room_for(width):
            group.waits_for = request
            return True
        most = state.limits.max_running
        if most is not None and state.books.held + width > most:
            return False  # it is its turn: nobody overtakes it while it waits for the bound over all backends
        need = lane.need
        backend = need.backend
        if backend is None:
            return False
        if not need.fits:
            queue.took(need)
            self._collect(pool, request, backend, now)
            return True
        model = need.model
        key = queue.start_of(lane)
        queue.took(need)
        queue.remove(request)
        self._leave_for_slots(request, now)
        charged = state.charge.at_dispatch(request)
        queue.hold(flow)  # before the charge: what is idle may be forgotten by it
        queue.charge(flow, charged, key, backend)
        effects.append(Granted(request, self._lease(request, model, flow, backend, charged, now)))
        return True

    def _serve_collecting(self, pool: Pool, now: float, effects: list[Effect]) -> None:
        """Grant the collecting waiters that fit by now: where they collect, or anywhere else of their model."""
        for item in list(pool.collecting.values()):
            request = item.request
            if request not in pool.collecting:
                continue
            if request.deadline_at <= now:
                self.expire(request, now, effects)
                continue
            width = request.width
            model = self.state.models[request.model]
            backend: Backend | None = item.backend
            if item.backend.open < width:
                backend = model.route.pick(width, request.avoid)
                if backend is None:
                    continue
            assert backend is not None  # noqa: S101 - one of the two
            del pool.collecting[request]
            request._alarm_at = None
            pool.queue.correct(item.flow, self._idle_cost(item, now), item.backend)
            pool.queue.follow(item.key)
            item.backend.reserved_for = None
            request._reserved = None
            item.flow.tenant.collecting -= width
            if request._class is not None:
                request._class.held -= width
            self.state.books.held -= width
            self._leave_for_slots(request, now)
            effects.append(
                Granted(request, self._lease(request, model, item.flow, backend, item.charged, now))
            )


def servable(need: Need) -> bool:
    """Find what could serve `need` now: a backend where it fits, or one where it could start collecting."""
    group = need.group
    if group is not None and not group.admits:
        need.backend = None
        return False
    route = need.model.route
    backend = route.pick(need.width, need.avoid)
    need.fits = backend is not None
    if backend is None and need.width > 1:
        backend = route.collectable(need.width, need.avoid)
    need.backend = backend
    return backend is not None
