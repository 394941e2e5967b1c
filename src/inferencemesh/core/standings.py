"""Where each tenant of a pool stands: virtual service, virtual time, and who is lifted to it (contract D3, D4, D7).

Virtual service is charges / weight, in whole billionths. Virtual time V is the start of the last grant. A tenant that
begins to wait, or is back under its own limit, is lifted to V: idleness buys nothing. One that is idle is forgotten
as soon as V has reached its service.

Models that share only some of their backends, and classes that have a limit or a rank: what waits there may fall behind
V for want of slots, not of fairness. A newcomer is then placed beside those who wait for the same (`_level`), not
behind what they have been waiting for, nor before those who wait for other slots. The offset of its lane says how far
from its tenant's service that is.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from inferencemesh.core.bands import Bands
from inferencemesh.core.flow import Flow, Lane, Need
from inferencemesh.core.tenant import Tenant

if TYPE_CHECKING:
    from inferencemesh.core.group import Group
    from inferencemesh.core.served import Served
    from inferencemesh.core.slots import Backend

_MAX_RESTING = 10_000  # idle tenants whose last charges are still remembered


class Standings:
    """The flows of one pool."""

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
            del flow.tenant.flows[flow.queue]
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
