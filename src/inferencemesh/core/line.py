"""One line: who has a place, how many there may be, who is the newest (contract A2, A3, D8).

A model has one, and one more for each class that has bounds of its own.

Places are counted apart from the order of service (`core.fairqueue`): a collecting request keeps its place,
and a request that a backend sent back has one outside the bound.
"""

from __future__ import annotations

from math import ceil

from inferencemesh.core.claims import Claims, OwnClaims
from inferencemesh.core.model import ModelSpec
from inferencemesh.core.places import Places
from inferencemesh.core.request import Request
from inferencemesh.core.tenant import Tenant


class TenantLine:
    """One tenant's waiters in one line."""

    __slots__ = ("_newest", "count", "displaceable", "line", "offset", "offsets", "tenant")

    def __init__(self, line: Line, tenant: Tenant) -> None:
        self.line = line
        self.tenant = tenant
        self.count = 0
        self.displaceable = 0  # those that no backend has sent back
        self.offset = 0.0  # the class offset of all its waiters,
        self.offsets: dict[float, int] | None = None  # or how many have which
        self._newest: list[Request] = []  # by arrival; those who left are dropped from the end, or compacted

    def ahead(self, offset_s: float) -> int:
        """Return how many of the tenant's waiters a newcomer of this class cannot overtake."""
        if self.offsets is None:
            return self.count if self.offset <= offset_s else 0
        return sum(count for offset, count in self.offsets.items() if offset <= offset_s)

    def newest(self) -> Request | None:
        """Return the waiter that arrived last, those that a backend sent back aside."""
        stack = self._newest
        while stack:
            if self._holds(stack[-1]):
                return stack[-1]
            stack.pop()
        return None

    def compact(self) -> None:
        """Drop those who left."""
        self._newest[:] = [kept for kept in self._newest if self._holds(kept)]

    def _holds(self, request: Request) -> bool:
        return request._place is self and not request._exempt


class Line:
    """All waiters of one line. Depth and shares are exact at once, whoever leaves for whatever reason."""

    __slots__ = ("claims", "count", "own_claims", "places", "spec", "tenants")

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.count = 0
        self.tenants: dict[Tenant, TenantLine] = {}
        self.places = Places()
        self.claims = Claims()  # of refused callers to a place,
        self.own_claims = OwnClaims()  # and to one of those that their tenant may have

    def limit(self, slots: int, service_s: float) -> int:
        """Return the bound in force for `slots` usable slots and a mean service time of `service_s` seconds."""
        spec = self.spec
        if spec.max_waiting is not None:
            return spec.max_waiting
        return max(1, min(4 * slots, ceil(slots * spec.wait_budget_s / service_s)))

    def use_claim(self, tenant: str, now: float, returns: bool | None) -> bool:
        """A request of `tenant` arrives: return whether it was told to come back now, to any of these places."""
        return self.own_claims.use(tenant, now, returns) or self.claims.use(tenant, now, returns)

    def enter(self, request: Request, tenant: Tenant) -> None:
        """Give `request` a place."""
        place = self.tenants.get(tenant)
        if place is None:
            place = self.tenants[tenant] = tenant.lines[self] = TenantLine(self, tenant)
        request._place = place
        self.count += 1
        offset = request.class_offset_s
        if not place.count:
            place.offset = offset
        elif place.offsets is None and offset != place.offset:
            place.offsets = {place.offset: place.count}
        if place.offsets is not None:
            place.offsets[offset] = place.offsets.get(offset, 0) + 1
        place.count += 1
        if not request._exempt:
            place.displaceable += 1
            place._newest.append(request)
            self.places.add(tenant, 1)

    def leave(self, request: Request) -> None:
        """Take the place of `request` back."""
        place = request._place
        assert place is not None  # noqa: S101 - only waiters are asked to leave
        request._place = None
        tenant = place.tenant
        self.count -= 1
        place.count -= 1
        offsets = place.offsets
        if offsets is not None:
            offset = request.class_offset_s
            offsets[offset] -= 1
            if not offsets[offset]:
                del offsets[offset]
        if not request._exempt:
            place.displaceable -= 1
            if len(place._newest) > 2 * place.displaceable + 16:
                place.compact()
            self.places.remove(tenant, 1)
        if not place.count:
            del self.tenants[tenant]
            del tenant.lines[self]
