"""Sharing what is scarce for waiters (places, bytes) by weight, so that a flood can be told from a caller (D8).

Amounts per tenant are exact at once. Who is most above its share is only asked for when the bound is hit: a
heap over the tenants exists from the first such question until the amount has fallen to half of what it then
was, so an uncontested line pays nothing for it. Asking costs O(log tenants) amortised, however many refusals
there are.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from inferencemesh.core.tenant import Tenant

_Entry = tuple[float, int, int, Tenant]  # -amount/weight, -service, number, tenant


class Places:
    """Amounts of one bounded thing by tenant."""

    __slots__ = ("_contested_at", "_heap", "_number", "amounts", "total", "weights")

    def __init__(self) -> None:
        self.amounts: dict[Tenant, int] = {}
        self.total = 0
        self.weights = 0.0  # of the tenants that have any
        self._heap: list[_Entry] | None = None
        self._contested_at = 0
        self._number = 0

    def add(self, tenant: Tenant, amount: int) -> None:
        """Count `amount` more for `tenant`."""
        held = self.amounts.get(tenant)
        if held is None:
            self.weights += tenant.weight
            held = 0
        held += amount
        self.amounts[tenant] = held
        self.total += amount
        if self._heap is not None:
            self._push(self._heap, tenant, held)

    def remove(self, tenant: Tenant, amount: int) -> None:
        """Count `amount` less for `tenant`."""
        held = self.amounts[tenant] - amount
        self.total -= amount
        if held:
            self.amounts[tenant] = held
        else:
            del self.amounts[tenant]
            # Sums of floats drift; an empty line is the moment to start anew.
            self.weights = self.weights - tenant.weight if self.amounts else 0.0
        if self._heap is not None and self.total * 2 <= self._contested_at:
            self._heap = None

    def weights_with(self, tenant: Tenant) -> float:
        """Return the weights of those that have any, `tenant` included."""
        return self.weights if tenant in self.amounts else self.weights + tenant.weight

    def share_per_weight(self, tenant: Tenant, limit: int) -> float:
        """Return what of `limit` is due to a weight of 1 when `tenant` has some, too."""
        return limit / self.weights_with(tenant)

    def most(self, spared: Callable[[Tenant], bool] | None = None) -> Tenant | None:
        """Return the tenant with the most by weight, of those who are not `spared`: a few at most.

        Among equals it is the one that has had the most service.
        """
        tenant = self._most()
        if spared is None or tenant is None or not spared(tenant):
            return tenant
        heap = self._heap
        assert heap is not None  # noqa: S101 - it has just been looked at
        passed: list[_Entry] = []
        while tenant is not None and spared(tenant):
            passed.append(heappop(heap))
            tenant = self._most()
        for entry in passed:
            heappush(heap, entry)
        return tenant

    def _most(self) -> Tenant | None:
        heap = self._heap
        amounts = self.amounts
        if heap is None:
            heap = self._heap = []
            self._contested_at = self.total
            self._fill(heap)
        while heap:
            entry = heap[0]
            tenant = entry[3]
            held = amounts.get(tenant, 0)
            if not held:
                heappop(heap)
                continue
            ratio = -held / tenant.weight
            if ratio == entry[0]:
                return tenant
            if ratio < entry[0]:
                heappop(heap)  # it has more by now, and another entry that says so
                continue
            self._number += 1
            heapreplace(heap, (ratio, -tenant.standing, self._number, tenant))
        return None

    def _fill(self, heap: list[_Entry]) -> None:
        """Make the heap anew: one entry for each tenant that has any."""
        heap.clear()
        for tenant, held in self.amounts.items():
            self._number += 1
            heap.append((-held / tenant.weight, -tenant.standing, self._number, tenant))
        heapify(heap)

    def _push(self, heap: list[_Entry], tenant: Tenant, held: int) -> None:
        if len(heap) > 2 * len(self.amounts) + 32:  # most of them say what is no longer so
            self._fill(heap)
            return
        self._number += 1
        heappush(heap, (-held / tenant.weight, -tenant.standing, self._number, tenant))
