"""Places in the line for refused callers who come back when they were told to (contract A10).

A ticket is worth something only if its holder then finds a place. While tickets are due, up to half of the
line's places are kept from those who have none: requests that are known to be first tries, and tenants without a
due ticket. One that is not used within `KEPT_S` lapses; at most `MOST` are remembered. Slots are never kept.
Where a bound of the tenant's own refused, up to half of the places that it allows are kept likewise (`OwnClaims`).

How many returns at the time told were admitted is counted: the honesty of `Retry-After`.
"""

from __future__ import annotations

from heapq import heappop, heappush

KEPT_S = 2.5
"""Seconds for which a ticket is good: clients round up and add some chance."""
EARLY_S = 0.1
"""Seconds before its time at which a ticket may be used."""
AHEAD_S = 2.5
"""Seconds before its time from which on a place is kept for a ticket: what is taken now is not free again at once."""
MOST = 4096
MOST_OF_ONE = 512
"""Of one tenant, so that a flood leaves room for the tickets of others."""


class Claim:
    """One ticket that is out."""

    __slots__ = ("at", "lapsed", "tenant")

    def __init__(self, at: float, tenant: str) -> None:
        self.at = at
        self.tenant = tenant
        self.lapsed = False


_Entry = tuple[float, int, Claim]


class Claims:
    """The tickets of one line's refused callers."""

    __slots__ = ("_by_tenant", "_due", "_later", "_numbers", "_out", "broken", "due", "kept")

    def __init__(self) -> None:
        self.due = 0  # tickets that are good now, and have not been used
        self.kept = 0  # returns at the time told that were admitted
        self.broken = 0  # ... that were refused again
        self._numbers = 0
        self._out: dict[str, int] = {}  # tickets by tenant
        self._later: list[_Entry] = []  # a heap by the time from which a place is kept
        self._due: list[
            _Entry
        ] = []  # a heap by the time told; those that were used are dropped when they are seen
        self._by_tenant: dict[str, list[_Entry]] = {}  # heaps of those that are due and have not been used

    def add(self, tenant: str, at: float, ahead_s: float = AHEAD_S) -> None:
        """A caller of `tenant` was told to come back `at` that time; a place is kept for it from `ahead_s` before."""
        out = self._out.get(tenant, 0)
        if len(self._later) + len(self._due) < MOST and out < MOST_OF_ONE:
            self._out[tenant] = out + 1
            self._numbers += 1
            heappush(self._later, (at - max(AHEAD_S, ahead_s), self._numbers, Claim(at, tenant)))

    def use(self, tenant: str, now: float, returns: bool | None) -> bool:
        """A request of `tenant` arrives: return whether it holds a ticket that is due, and use that up.

        `returns` is whether the caller says that it tries again, None if it says nothing.
        """
        if self._later or self._due:
            self._advance(now)
        if not self.due or returns is False:
            return False
        mine = self._by_tenant.get(tenant)
        if mine is None or mine[0][0] - EARLY_S > now:
            return False
        self._drop(heappop(mine)[2])
        return True

    def spent(self, now: float) -> bool:
        """Whether no ticket is out at `now`."""
        self._advance(now)
        return not self._later and not self.due

    def came_back(self, admitted: bool) -> None:
        """The holder of a ticket was admitted, or refused once more."""
        if admitted:
            self.kept += 1
        else:
            self.broken += 1

    def _advance(self, now: float) -> None:
        later, due = self._later, self._due
        while later and later[0][0] <= now:
            _, number, claim = heappop(later)
            entry = (claim.at, number, claim)
            heappush(due, entry)
            heappush(self._by_tenant.setdefault(claim.tenant, []), entry)
            self.due += 1
        while due and (due[0][2].lapsed or due[0][0] + KEPT_S < now):
            claim = heappop(due)[2]
            if not claim.lapsed:
                heappop(self._by_tenant[claim.tenant])  # of its tenant's, too, it is the earliest
                self._drop(claim)

    def _drop(self, claim: Claim) -> None:
        claim.lapsed = True
        self.due -= 1
        out = self._out[claim.tenant] - 1
        if out:
            self._out[claim.tenant] = out
        else:
            del self._out[claim.tenant]
        if not self._by_tenant[claim.tenant]:
            del self._by_tenant[claim.tenant]


class OwnClaims:
    """Tickets to one of the places that a tenant may have in one line; apart for each tenant, of at most `MOST`."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[str, Claims] = {}

    def add(self, tenant: str, at: float, now: float, ahead_s: float = AHEAD_S) -> None:
        """A caller of `tenant` was told at `now` to come back `at` that time; see `Claims.add`."""
        claims = self._of.get(tenant)
        if claims is None:
            if len(self._of) >= MOST:
                self._of = {name: kept for name, kept in self._of.items() if not kept.spent(now)}
            if len(self._of) >= MOST:
                return
            claims = self._of[tenant] = Claims()
        claims.add(tenant, at, ahead_s)

    def use(self, tenant: str, now: float, returns: bool | None) -> bool:
        """See `Claims.use`."""
        claims = self._of.get(tenant)
        if claims is None:
            return False
        used = claims.use(tenant, now, returns)
        if claims.spent(now):
            del self._of[tenant]
        return used

    def due(self, tenant: str) -> int:
        """Return how many of the tenant's tickets are good now, as of the last `use`."""
        claims = self._of.get(tenant)
        return claims.due if claims is not None else 0
