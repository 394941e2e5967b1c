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

Models that share only some of their backends: a tenant whose model has few slots falls behind V for want of
capacity, not of fairness. A newcomer to that model is then placed beside those who wait for it (`_level`),
not behind what they have been waiting for.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from inferencemesh.core.bands import Bands
from inferencemesh.core.flow import Entry, Flow, Lane, Need
from inferencemesh.core.tenant import Tenant

if TYPE_CHECKING:
    from inferencemesh.core.group import Group
    from inferencemesh.core.request import Request
    from inferencemesh.core.served import Served
    from inferencemesh.core.slots import Backend

_MAX_RESTING = 10_000  # idle tenants whose last charges are still remembered


class FairQueue:
    """The fair line of one pool."""

    __slots__ = (
        "_active",
        "_apart",
        "_bands",
        "_dropped",
        "_highest",
        "_lags",
        "_least",
        "_lifts",
        "_needs",
        "_reserving",
        "_rested",
        "_resting",
        "flows",
        "held",
        "v",
        "waiting",
    )

    def __init__(
        self,
        *,
        lags: bool = False,
        apart: bool = False,
        lifts: bool = True,
        floor: float | None = None,
        dropped: Callable[[Tenant], None] | None = None,
    ) -> None:
        self.v = 0  # virtual time; never falls
        self.flows: dict[Tenant, Flow] = {}
        self.waiting = 0
        self.held = 0  # leases and collecting waiters of all flows
        self._highest = 0  # no flow's service is above
        self._lifts = lifts  # whether virtual time moves: else it stays at 0, and idleness is not noticed
        self._lags = lags  # whether models or classes of the pool can be served at different speeds
        self._apart = apart  # whether there are backends that not all models of the pool have
        self._reserving: dict[Flow, None] = {}  # flows with waiters whose tenants have slots reserved
        self._least: int | None = (
            None  # where the present winner comes first out of turn: whose turn it would be
        )
        self._dropped = dropped  # told of each tenant whose flow is forgotten
        self._bands: Bands | None = Bands(floor) if floor is not None else None
        self._needs: dict[tuple[str, int, frozenset[str], Group | None], Need] = {}
        self._active: dict[Need, None] = {}  # needs with waiters
        self._resting: list[tuple[int, int, Flow]] = []  # idle flows by service; see `_advance`
        self._rested = 0  # how many have come to rest: among equals the first is forgotten first

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

    # --- service --------------------------------------------------------------------------------------------

    def charge(self, flow: Flow, amount: float, key: int, backend: Backend) -> None:
        """Charge a grant on `backend` that started at `key`; virtual time follows."""
        tenant = flow.tenant
        delta = round(amount * tenant.step)
        flow.service = service = flow.service + delta
        if self._apart and flow.waiting:
            self._spare(flow, delta, backend)
        tenant.charged += amount
        tenant.standing = service
        if service > self._highest:
            self._highest = service
        self.follow(key)

    def follow(self, key: int) -> None:
        """A request that started at `key` is in service: virtual time is not behind it."""
        if key > self.v and self._lifts:
            self.v = key
            if self._resting:
                self._forget()

    def correct(self, flow: Flow, amount: float, backend: Backend) -> None:
        """Add `amount` to what the flow has been charged for a grant on `backend`; negative gives back."""
        delta = round(amount * flow.tenant.step)
        flow.service += delta
        if self._apart and flow.waiting:
            self._spare(flow, delta, backend)
        flow.tenant.charged += amount
        flow.tenant.standing = flow.service
        if flow.service > self._highest:
            self._highest = flow.service
        if delta < 0 and flow.waiting:
            for lane in flow.lanes.values():
                if lane.stamp:
                    self._touch(lane)

    def _spare(self, flow: Flow, delta: int, backend: Backend) -> None:
        """What was used where a lane could not have been served does not move that lane.

        Else a tenant that keeps other backends busy, idle ones even, would never have its turn here.
        """
        for lane in flow.lanes.values():
            if lane.live and backend not in lane.need.model.route.backends:
                lane.offset -= delta

    def hold(self, flow: Flow) -> None:
        """The flow has one lease, or collecting waiter, more."""
        flow.held += 1
        self.held += 1

    def unhold(self, flow: Flow) -> None:
        """The flow has one lease, or collecting waiter, less."""
        flow.held -= 1
        self.held -= 1
        if flow.idle:
            self.rest(flow)

    # --- eligibility ----------------------------------------------------------------------------------------

    def park(self, flow: Flow) -> None:
        """The tenant is at its own limit: it stands in nobody's way (contract D1)."""
        for lane in flow.lanes.values():
            if lane.stamp:
                lane.stamp = 0
                lane.need.eligible -= 1

    def unpark(self, flow: Flow) -> None:
        """The tenant is under its own limit again: lifted to V, as after idleness."""
        if flow.service < self.v:
            short = self.v - flow.service
            flow.service = flow.tenant.standing = self.v
            self._highest = max(self._highest, self.v)
            for lane in flow.lanes.values():
                lane.offset -= short
        for lane in flow.lanes.values():
            if lane.live:
                behind = self._level(lane.need) - flow.service - lane.offset
                if behind > 0:
                    lane.offset += behind
                self._touch(lane)

    def _place(self, flow: Flow, need: Need) -> int:
        """Lift a flow that begins to wait with `need`; return the offset of its lane."""
        v = self.v
        if flow.service < v and not (flow.waiting and self._competes(flow, need.group, need.model)):
            self._lift(flow)
        if not self._lags:
            return 0
        return self._level(need) - min(flow.service, v)

    def _competes(self, flow: Flow, group: Group | None, model: Served) -> bool:
        """Whether the flow has waited for slots that a request of this class and model may have.

        Waiting where nothing could be had (a class at its limit, a less urgent class, another model's backends) is
        idleness here, and saves up nothing (contract D4).
        """
        band = group.band if group is not None else 0
        for lane in flow.lanes.values():
            other = lane.need.group
            if (
                lane.live
                and (other is None or ((other is group or other.admits) and other.band <= band))
                and not (self._lags and lane.need.model.reach != model.reach)
            ):
                return True
        return False

    def _lift(self, flow: Flow) -> None:
        """Put the flow at V; what waits in other models' lines keeps its place there."""
        short = self.v - flow.service
        flow.service = flow.tenant.standing = self.v
        self._highest = max(self._highest, self.v)
        if self._lags:
            for lane in flow.lanes.values():
                lane.offset -= short

    def _level(self, need: Need) -> int:
        """Return where newcomers stand: V, or beside those who compete for the same slots and lag behind it."""
        level = self.v
        if self._lags:
            for other in self._active:
                if (
                    other.model.reach == need.model.reach
                    and other.group is need.group
                    and other.eligible
                    and other.width <= need.width
                    and other.avoid <= need.avoid
                ):
                    entry = other.top()
                    if entry is not None and entry[0] < level:
                        level = entry[0]
        return level

    def _touch(self, lane: Lane) -> None:
        """Enter the lane, or move its entry forward; a key that rose is left to `Need.top`."""
        key = lane.flow.service + lane.offset
        first = lane.heap[0][2]
        number = first._seq if first._lane is lane else lane.head()._seq
        if not lane.stamp:
            lane.need.eligible += 1
        elif (key, number) >= (lane.key, lane.number):
            return
        lane.need.push(lane, key, number)

    # --- forgetting -----------------------------------------------------------------------------------------

    def rest(self, flow: Flow) -> None:
        """An idle flow is forgotten as soon as that changes nothing: when V has reached its service.

        At the end of a busy period (nothing waits, nothing is held) V moves past everybody, as in SFQ.
        """
        if not (self.waiting or self.held):
            if self._lifts:
                self.v = max(self.v, self._highest)
            self._resting.clear()
            for gone in list(self.flows.values()):
                self._drop(gone)
        elif flow.service <= self.v:
            self._drop(flow)
        elif not flow.resting:
            self._push_resting(flow)
            if len(self._resting) > _MAX_RESTING:
                self._settle_rest()

    def _push_resting(self, flow: Flow) -> None:
        flow.resting = True
        self._rested += 1
        heappush(self._resting, (flow.service, self._rested, flow))

    def _drop(self, flow: Flow) -> None:
        if self.flows.get(flow.tenant) is flow:
            del self.flows[flow.tenant]
            del flow.tenant.flows[self]
            if flow.tenant.latest is flow:
                flow.tenant.latest = None
            if self._dropped is not None:
                self._dropped(flow.tenant)

    def _forget(self) -> None:
        while self._resting and self._resting[0][0] <= self.v:
            self._settle_rest()

    def _settle_rest(self) -> None:
        """Forget the idle flow with the least service, or put it back if it has more by now.

        Beyond the cap one charge is forgiven, to the flow that had the least.
        """
        _, _, flow = heappop(self._resting)
        flow.resting = False
        if flow.idle and self.flows.get(flow.tenant) is flow:
            if flow.service > self.v and len(self._resting) < _MAX_RESTING:
                self._push_resting(flow)
            else:
                self._drop(flow)
