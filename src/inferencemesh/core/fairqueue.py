"""Start-time fair queueing over the tenants of one pool (contract D3, D4, D6, D7).

Sources: Goyal, Vin, Cheng, "Start-time fair queueing" (ToN 1997); Jin, Chase, Kaur, SFQ(D) (SIGMETRICS 2004)
for many servers; Sheng et al., virtual token counters (OSDI 2024) for the lift; API priority and fairness in
Kubernetes for charge and correction.

Each tenant has a virtual service (charges / weight). Next is the eligible tenant with the least; virtual time
V is the start of the last grant. A tenant that begins to wait, or is back under its own limit, is lifted to
V: idleness buys nothing. With charges that are final at dispatch, two tenants that wait all the while differ
by at most one charge each, normalised by weight, whatever the number of slots. Within a tenant the order is
arrival + class offset.

What a waiter needs (model, width, backends to avoid) is its *need*. Each need has a heap of the tenants that
wait with it, by (virtual service, arrival number of the head), so that a need which nothing can serve now
stands in nobody's way. A key that has risen is corrected when it comes to the top; one that has fallen is
pushed anew and the old entry dropped when seen. One decision costs O(log tenants) and nothing per waiter.

Where each tenant stands is kept by `core.standings`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from inferencemesh.core.flow import Entry, Flow, Lane, Need
from inferencemesh.core.standings import Standings
from inferencemesh.core.tenant import Tenant

if TYPE_CHECKING:
    from inferencemesh.core.request import Request
    from inferencemesh.core.served import Served


class FairQueue(Standings):
    """The fair line of one pool."""

    __slots__ = ()

    # --- entering and leaving -------------------------------------------------------------------------------

    def flow(self, tenant: Tenant) -> Flow:
        """Return the tenant's flow, a new one at V if it has none."""
        flow = tenant.latest
        if flow is None or flow.queue is not self:
            flow = self.flows.get(tenant)
            if flow is None:
                flow = self.flows[tenant] = tenant.flows[self] = Flow(self, tenant, self.v)
            tenant.latest = flow
        return flow

    def need(self, model: Served, request: Request) -> Need:
        """Return what `request` needs."""
        if request.width == 1 and not request.avoid and request._class is None:
            narrow = model.narrow  # nearly all requests; a model has one pool, and that one fair line
            if narrow is None:
                narrow = model.narrow = self._need(model, request)
            return narrow
        return self._need(model, request)

    def _need(self, model: Served, request: Request) -> Need:
        key = (model.name, request.width, request.avoid, request._class)
        need = self._needs.get(key)
        if need is None:
            need = self._needs[key] = Need(model, request.width, request.avoid, request._class)
        return need

    def add(self, request: Request, model: Served, tenant: Tenant) -> None:
        """Put `request` into the fair line."""
        flow = self.flow(tenant)
        need = self.need(model, request)
        lane = flow.latest
        if lane is None or lane.need is not need:
            lane = flow.lanes.get(need)
            if lane is None:
                lane = flow.lanes[need] = Lane(flow, need)
            flow.latest = lane
        if not lane.live:
            if not need.lanes:
                self._active[need] = None
            need.lanes += 1
            lane.offset = self._place(flow, need)
        heappush(lane.heap, (request._order, request._seq, request))
        request._lane = lane
        lane.live += 1
        flow.waiting += 1
        self.waiting += 1
        if tenant.reserved:
            self._reserving[flow] = None
        if not tenant.parked and (not lane.stamp or request._seq < lane.number):
            self._touch(lane)

    def remove(self, request: Request) -> None:
        """Take `request` out of the fair line: granted, collecting, or gone."""
        lane = request._lane
        assert lane is not None  # noqa: S101 - the caller knows that it is in the line
        flow = lane.flow
        was_head = lane.heap[0][2] is request or lane.head() is request
        if was_head:
            heappop(lane.heap)
        elif request._exempt:
            # It may come back to this lane; nobody else does, so others are dropped when they are seen.
            lane.heap.remove((request._order, request._seq, request))
            heapify(lane.heap)
        request._lane = None
        lane.live -= 1
        flow.waiting -= 1
        self.waiting -= 1
        if not flow.waiting and flow.tenant.reserved:
            del self._reserving[flow]
        if not lane.live:
            need = lane.need
            lane.heap.clear()
            if lane.stamp:
                lane.stamp = 0
                need.eligible -= 1
            need.lanes -= 1
            if not need.lanes:
                del self._active[need]
                need.heap.clear()
                if need.avoid:
                    del self._needs[need.model.name, need.width, need.avoid, need.group]
            if need.avoid or len(flow.lanes) > 8:
                del flow.lanes[need]
                if flow.latest is lane:
                    flow.latest = None
        else:
            if len(lane.heap) > 2 * lane.live + 16:
                lane.heap[:] = [kept for kept in lane.heap if kept[2]._lane is lane]
                heapify(lane.heap)
            if was_head and lane.stamp:
                self._touch(lane)

    def start(self, flow: Flow, model: Served, request: Request) -> int:
        """Lift a flow that is granted without having waited; return the key that the grant starts at."""
        if flow.service < self.v and not (flow.waiting and self._competes(flow, request._class, model)):
            self._lift(flow)
        return self.lifted(flow.tenant, model, request) if self._lags else flow.service

    def lifted(self, tenant: Tenant, model: Served, request: Request) -> int:
        """Return the key that `request`, a waiter of `tenant`, has or would have if it came now."""
        flow = self.flows.get(tenant)
        need = self.need(model, request)
        if flow is None:
            return self._level(need)
        lane = flow.lanes.get(need)
        if lane is not None and lane.live:
            return flow.service + lane.offset
        competes = flow.waiting and self._competes(flow, request._class, model)
        service = flow.service if competes else max(flow.service, self.v)
        return service + self._level(need) - min(service, self.v) if self._lags else service

    # --- decisions ------------------------------------------------------------------------------------------

    def winner(self, servable: Callable[[Need], bool]) -> Lane | None:
        """Return the lane whose head is next among the needs that are `servable` now; None if there is none.

        That is the first waiter of the tenant with the least (virtual service, arrival number of its first waiter);
        tenants that hold less than what is reserved for them come before the others.
        """
        best: Entry | None = None
        self._least = None
        for need in self._active:
            if need.eligible and servable(need):
                entry = need.top()
                if entry is not None and (best is None or entry < best):
                    best = entry
            else:
                need.backend = None
        if best is None:
            return None
        if self._reserving:
            first = self._first_reserved()
            if first is not None:
                self._least = best[0]
                return first
        if self._bands is not None:
            best = self._bands.best(self._active)
        lane = best[3]
        if len(lane.flow.lanes) > 1 and not self._is_first(lane, best[0]):
            return self._next_after(best)
        return lane

    def took(self, need: Need) -> None:
        """The present winner, who has this need, is served. A reserve is outside of the bands."""
        if self._bands is not None and self._least is None:
            self._bands.took(need)

    def _first_reserved(self) -> Lane | None:
        """Like `winner`, among the tenants that hold less than their reserve. O(tenants with a reserve that wait)."""
        best: tuple[int, int, Lane] | None = None
        for flow in self._reserving:
            tenant = flow.tenant
            if tenant.parked or not tenant.comes_first(1):
                continue
            for lane in flow.lanes.values():
                need = lane.need
                if not lane.stamp or need.backend is None or not tenant.comes_first(need.width):
                    continue
                key = flow.service + lane.offset
                if self._is_first(lane, key):
                    mine = (key, lane.head()._seq, lane)
                    if best is None or mine[:2] < best[:2]:
                        best = mine
        return None if best is None else best[2]

    def start_of(self, lane: Lane) -> int:
        """Return where a grant to the present winner starts.

        One that comes first by its reserve starts no later than whose turn it would be: virtual time must not pass
        the others.
        """
        key = lane.flow.service + lane.offset
        return key if self._least is None else min(key, self._least)

    def _next_after(self, best: Entry | None) -> Lane | None:
        """Like `winner`, where the lane on top does not hold the first of its tenant's waiters: pass over it."""
        passed: list[Entry] = []
        lane: Lane | None = None
        while best is not None:
            lane = best[3]
            if self._is_first(lane, best[0]):
                break
            heappop(lane.need.heap)
            passed.append(best)
            best = lane = None
            for need in self._active:
                if need.backend is not None:
                    entry = need.top()
                    if entry is not None and (best is None or entry < best):
                        best = entry
        for entry in passed:
            heappush(entry[3].need.heap, entry)
        return lane

    def _is_first(self, lane: Lane, key: int) -> bool:
        """Whether no other lane of the tenant that could be served as well has a head that comes before this one's.

        Classes of it may lag behind one another; among those for the same backends the tenant's own order holds (D6).
        """
        head = lane.head()
        flow = lane.flow
        reach = lane.need.model.reach
        for other in flow.lanes.values():
            if not other.stamp or other.need.backend is None:
                continue
            if other.need.model.reach != reach and flow.service + other.offset != key:
                continue
            first = other.head()
            if (first._order, first._seq) < (head._order, head._seq):
                return False
        return True
