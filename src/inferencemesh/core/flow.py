"""The pieces of a fair line: what is needed, by whom, in whose order. `core.fairqueue` puts them together."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from inferencemesh.core.tenant import Tenant

if TYPE_CHECKING:
    from inferencemesh.core.fairqueue import FairQueue
    from inferencemesh.core.group import Group
    from inferencemesh.core.request import Request
    from inferencemesh.core.served import Served
    from inferencemesh.core.slots import Backend


class Need:
    """What some waiters of a pool need: `width` slots on one backend of `model`, better none of `avoid`."""

    __slots__ = (
        "avoid",
        "backend",
        "eligible",
        "fits",
        "group",
        "heap",
        "lanes",
        "model",
        "pushed",
        "width",
    )

    def __init__(self, model: Served, width: int, avoid: frozenset[str], group: Group | None) -> None:
        self.model = model
        self.width = width
        self.avoid = avoid
        self.group = group  # the class of its requests, where that has a limit or a rank
        self.lanes = 0  # tenants that wait with it, parked ones included
        self.eligible = 0  # those that stand in the heap
        self.heap: list[Entry] = []
        self.pushed = 0  # entries so far
        self.backend: Backend | None = None  # what the present decision found for it
        self.fits = False

    def top(self) -> Entry | None:
        """Return the entry of the eligible tenant with the least virtual service, corrected; None if none is."""
        heap = self.heap
        while heap:
            entry = heap[0]
            lane = entry[3]
            if lane.stamp != entry[2]:
                heappop(heap)
                continue
            key = lane.flow.service + lane.offset
            first = lane.heap[0][2]
            number = first._seq if first._lane is lane else lane.head()._seq
            if key == entry[0] and number == entry[1]:
                return entry
            lane.key = key
            lane.number = number
            heapreplace(heap, (key, number, entry[2], lane))
        return None

    def push(self, lane: Lane, key: int, number: int) -> None:
        """Enter a lane under a new key; what it had before is stale."""
        heap = self.heap
        self.pushed = stamp = self.pushed + 1
        lane.key = key
        lane.number = number
        lane.stamp = stamp
        if len(heap) > 2 * self.eligible + 32:
            heap[:] = [kept for kept in heap if kept[3].stamp == kept[2]]
            heapify(heap)
        heappush(heap, (key, number, stamp, lane))


class Lane:
    """One tenant's waiters of one need, in its own order."""

    __slots__ = ("flow", "heap", "key", "live", "need", "number", "offset", "stamp")

    def __init__(self, flow: Flow, need: Need) -> None:
        self.flow = flow
        self.need = need
        self.heap: list[tuple[float, int, Request]] = []
        self.live = 0
        self.offset = 0  # added to the flow's virtual service: 0 but where a model lags behind V
        self.stamp = 0  # of its valid entry in the need's heap; 0 while parked or empty
        self.key = 0  # what that entry says
        self.number = 0

    def head(self) -> Request:
        """Return the first waiter; there must be one."""
        heap = self.heap
        while heap[0][2]._lane is not self:
            heappop(heap)
        return heap[0][2]


# Virtual service, arrival number of the first waiter, stamp: no two entries have the same.
Entry = tuple[int, int, int, Lane]


class Flow:
    """One tenant in one pool."""

    __slots__ = ("held", "lanes", "latest", "queue", "resting", "service", "tenant", "waiting")

    def __init__(self, queue: FairQueue, tenant: Tenant, service: int) -> None:
        self.queue = queue
        self.tenant = tenant
        self.service = service  # virtual: charges / weight, in billionths
        self.lanes: dict[Need, Lane] = {}
        self.latest: Lane | None = None  # the one of its lanes that was entered last
        self.waiting = 0  # in the fair line: collecting waiters have been pulled out of it
        self.held = 0  # leases and collecting waiters
        self.resting = False  # has an entry among the idle

    @property
    def idle(self) -> bool:
        """Whether nothing of it waits or is held here."""
        return not (self.waiting or self.held)
