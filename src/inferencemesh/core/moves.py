"""Places and slots change hands: each move with every count that goes with it (contract A4, A5, D1).

The moves decide nothing. Whatever may have made something grantable marks its pool; `core.dispatch` then serves it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from inferencemesh.core.breaker import BreakerState
from inferencemesh.core.flow import Flow
from inferencemesh.core.group import Group
from inferencemesh.core.pool import Pool
from inferencemesh.core.request import Lease, LeaseState, Request, RequestState
from inferencemesh.core.served import Served
from inferencemesh.core.slots import Backend
from inferencemesh.core.state import State
from inferencemesh.core.tenant import Tenant


class Moves:
    """The moves on the state."""

    __slots__ = ("_dirty", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._dirty: list[Pool] = []

    # --- places ---------------------------------------------------------------------------------------------

    def enter(self, request: Request, model: Served, tenant: Tenant, now: float) -> None:
        """Give `request` a place in its line and in the fair line of its pool."""
        state = self.state
        books = state.books
        request.state = RequestState.WAITING
        request._queued_at = now
        request._expires_at = min(request.deadline_at, now + request._wait_left_s)
        line = request._line
        assert line is not None  # noqa: S101 - set when it was offered
        line.enter(request, tenant)
        tenant.waiting += 1
        books.waiting += 1
        size = request.size_bytes
        books.waiting_bytes += size
        if request._exempt:
            books.exempt_bytes += size
        else:
            state.places.add(tenant, 1)
            if size:
                state.bytes.add(tenant, size)
        state.expiries.add(request, books.waiting)
        model.pool.queue.add(request, model, tenant)
        for pace in request._paces:
            pace.enter(now)
        self._come_first(request, tenant)

    def _leave_line(self, request: Request, now: float) -> None:
        """Take the place back; the fair line is the caller's business."""
        state = self.state
        books = state.books
        place = request._place
        assert place is not None  # noqa: S101 - every waiter has one
        tenant = place.tenant
        place.line.leave(request)
        tenant.waiting -= 1
        books.waiting -= 1
        size = request.size_bytes
        books.waiting_bytes -= size
        if request._exempt:
            books.exempt_bytes -= size
        else:
            state.places.remove(tenant, 1)
            if size:
                state.bytes.remove(tenant, size)
        state.expiries.compact(books.waiting)
        waited = now - request._queued_at
        if waited > 0:
            request.waited_s += waited
            request._wait_left_s -= waited
        for pace in request._paces:
            pace.leave(now)

    def _leave_for_slots(self, request: Request, now: float) -> None:
        """The same for a waiter that is granted."""
        for pace in request._paces:
            pace.granted(now)
        self._leave_line(request, now)

    # --- slots ----------------------------------------------------------------------------------------------

    def grant_at_once(
        self, request: Request, model: Served, tenant: Tenant, backend: Backend, now: float
    ) -> Lease:
        """Grant a request that has no place, nobody eligible being before it."""
        queue = model.pool.queue
        flow = queue.flow(tenant)
        key = queue.start(flow, model, request)
        charged = self.state.charge.at_dispatch(request)
        queue.hold(flow)  # before the charge: what is idle may be forgotten by it
        queue.charge(flow, charged, key, backend)
        return self._lease(request, model, flow, backend, charged, now)

    def _lease(
        self, request: Request, model: Served, flow: Flow, backend: Backend, charged: float, now: float
    ) -> Lease:
        books = self.state.books
        width = request.width
        lease = Lease(request, backend, width, now, flow)
        lease._charged = charged
        backend.take(lease)
        model.route.chosen(backend)
        tenant = flow.tenant
        tenant.running += width
        group = request._class
        if group is not None:
            group.held += width
        books.held += width
        books.grants += 1
        books.running += 1
        model.speed.busy(width, now)
        request.attempts += 1
        request.lease = lease
        request.state = RequestState.RUNNING
        if tenant.max_running is not None and tenant.held >= tenant.max_running:
            self._park(tenant, tenant.parked_for)
        charge = self.state.charge
        if charge.grows:
            self._watch(lease, charge.due_at(lease, charged, now))
        return lease

    def drain(self, lease: Lease, now: float) -> None:
        """RUNNING to DRAINING: frees nothing."""
        lease.backend.drain(lease, now)
        tenant = lease._flow.tenant
        tenant.running -= lease.width
        tenant.draining += lease.width
        if lease.backend.breaker.state is BreakerState.HALF_OPEN:
            self.mark(self.state.pool_of[lease.backend])  # a half-open trial may have made way for the next

    def free(self, lease: Lease, now: float, *, undone: bool = False) -> None:
        """Give the slots back, to the backend that was captured at the grant.

        `undone`: it is as if they had never been granted, and nothing is charged.
        """
        state = self.state
        flow = lease._flow
        tenant = flow.tenant
        width = lease.width
        if lease.state is LeaseState.RUNNING:
            tenant.running -= width
        else:
            tenant.draining -= width
        group = lease.request._class
        if group is not None:
            self._give_back(group, width)
        lease.backend.free(lease)
        state.books.held -= width
        state.books.settled += 1
        state.models[lease.request.model].speed.busy(-width, now)
        queue = flow.queue
        if undone or state.charge.corrects:
            amount = -lease._charged if undone else state.charge.at_end(lease, lease._charged, now)
            lease._charged += amount
            queue.correct(flow, amount, lease.backend)
        queue.unhold(flow)
        if tenant.parked:
            self._unpark(tenant)
        self.mark(state.pool_of[lease.backend])

    def _give_back(self, group: Group, width: int) -> None:
        """Slots of a class are free: its waiters may be in any pool."""
        group.held -= width
        if group.max_running is not None:
            group.look()
            for pool in self.state.pools:
                self.mark(pool)

    def _watch(self, lease: Lease, due_at: float) -> None:
        """Look at the charge of `lease` again then."""
        books = self.state.books
        heap = self.state.outrunning
        if len(heap) > 2 * (books.grants - books.settled) + 64:
            heap[:] = [kept for kept in heap if kept[2].state is not LeaseState.FREED]
            heapify(heap)
        heappush(heap, (due_at, books.grants, lease))

    def outrun(self, now: float) -> None:
        """Add instalments for the leases that have outrun their charge.

        That changes the order of service and nothing else, so it is early enough before the next decision. But under a
        bound over all backends the one whose turn it was may be too wide, and who comes before it now may fit.
        """
        charge = self.state.charge
        heap = self.state.outrunning
        while heap and heap[0][0] < now:
            _, number, lease = heappop(heap)
            if lease.state is LeaseState.FREED:
                continue
            amount = charge.instalment(lease, lease._charged, now)
            if amount > 0:
                lease._charged += amount
                lease._flow.queue.correct(lease._flow, amount, lease.backend)
            heappush(heap, (charge.due_at(lease, lease._charged, now), number, lease))
        if self.state.limits.max_running is not None:
            for pool in self.state.pools:
                self.mark(pool)

    # --- eligibility ----------------------------------------------------------------------------------------

    def _park(self, tenant: Tenant, head: Request | None) -> None:
        tenant.parked = True
        tenant.parked_for = head
        self.mark_held_up()
        for queue, flow in tenant.flows.items():
            if flow.waiting:
                queue.park(flow)

    def _unpark(self, tenant: Tenant) -> None:
        """Let the tenant back into its fair lines, if its limit leaves what its head needs."""
        head = tenant.parked_for
        if not tenant.room_for(1 if head is None else head.width):
            return
        tenant.parked = False
        tenant.parked_for = None
        for queue, flow in tenant.flows.items():
            if flow.waiting:
                queue.unpark(flow)
                self.mark(self.state.pool_with[queue])

    def _come_first(self, request: Request, tenant: Tenant) -> None:
        """A tenant waits for room for its head. One that stands before that now may need less, and is looked at."""
        first = tenant.parked_for
        if first is not None and (request._order, request._seq) < (first._order, first._seq):
            tenant.parked_for = None
            self._unpark(tenant)

    def mark_held_up(self) -> None:
        """Somebody may not be able to be served any more for whose room a class waits: let its others be looked at."""
        for group in self.state.groups.values():
            if group.waits_for is not None:
                for pool in self.state.pools:
                    self.mark(pool)
                return

    def mark(self, pool: Pool) -> None:
        """Something of `pool` may have become grantable."""
        if not pool.dirty and (pool.queue.waiting or pool.collecting):
            pool.dirty = True
            self._dirty.append(pool)
