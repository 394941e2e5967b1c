"""What a grant costs its tenant (contract D3): the seam between the scheduler and the unit of service.

The scheduler only ever adds what a policy returns to a tenant's service. A policy that does not know the cost
at dispatch charges an estimate there, adds instalments while the request outruns it, and gives the difference
at the end, so that what was charged is what it has cost.

Here are the policies that need no measure; `core.metered` has those in slot-seconds and tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inferencemesh.core.request import Lease, Request


class ChargePolicy(Protocol):
    """How service is measured. Amounts are in the policy's unit (requests, slots, slot-seconds, tokens).

    One object belongs to one admission: it may learn from what it is told.
    """

    lifts: (
        bool  # whether whoever begins to wait is lifted to virtual time: false where no service is remembered
    )
    corrects: bool  # whether `at_end` can be other than 0: spares the call on the hot path
    grows: bool  # whether a running request can outrun its charge

    def at_dispatch(self, request: Request) -> float:
        """Return the charge of granting `request`, taken before anything of its cost is known."""

    def at_end(self, lease: Lease, charged: float, now: float) -> float:
        """Return what to add once the slots are free again; negative where `charged` was too much."""

    def due_at(self, lease: Lease, charged: float, now: float) -> float:
        """Return the time after which the request may have outrun `charged`: not before `now`."""

    def instalment(self, lease: Lease, charged: float, now: float) -> float:
        """Return what to add for a request that has outrun `charged` by `now`; 0 if it has not."""

    def undone(self, lease: Lease, charged: float, *, full: bool) -> float:
        """Return what to give back when the request of `lease`, not running any more, goes back to the line.

        `full`: the backend had no room and has done nothing for it.
        """

    def idle(self, slot_seconds: float, service_s: float) -> float:
        """Return the charge for slots that were kept from others, where a request lasts `service_s` on average."""

    def relative(self, request: Request) -> float:
        """Return how much requests of its tenant cost beside all of its model: the same share gets it fewer grants."""


class Exact:
    """What all policies whose charge is final at dispatch have in common."""

    lifts = True
    corrects = False
    grows = False

    def at_end(self, lease: Lease, charged: float, now: float) -> float:
        """Return 0: the charge was exact."""
        return 0.0

    def due_at(self, lease: Lease, charged: float, now: float) -> float:
        """Return never."""
        return float("inf")

    def instalment(self, lease: Lease, charged: float, now: float) -> float:
        """Return 0."""
        return 0.0

    def undone(self, lease: Lease, charged: float, *, full: bool) -> float:
        """Return all of it: the request is charged once, however often it is tried."""
        return charged

    def relative(self, request: Request) -> float:
        """Return 1: it is requests that are shared."""
        return 1.0


class PerSlot(Exact):
    """Unit `requests`: 1 per slot of width, final at dispatch.

    Two backlogged tenants differ by at most one charge each (bound B1:
    `|D_i/w_i - D_j/w_j| <= e_max/w_i + e_max/w_j`), whatever the number of slots.
    """

    def at_dispatch(self, request: Request) -> float:
        """Return the width."""
        return request.width

    def idle(self, slot_seconds: float, service_s: float) -> float:
        """Return how many requests could have been served meanwhile."""
        return slot_seconds / service_s


class PerHeldSlot(Exact):
    """Policy `slots`: the tenant that holds the fewest slots by weight is next; nothing of the past counts.

    Bound B3: with no slot free for them and nobody newly eligible during the longest service time, two
    eligible tenants hold `n_i/w_i - n_j/w_j <= 1/w_i`. It has no memory: beside long streams of one tenant,
    the short ones of another get ever more.
    """

    lifts = False
    corrects = True

    def at_dispatch(self, request: Request) -> float:
        """Return the width."""
        return request.width

    def at_end(self, lease: Lease, charged: float, now: float) -> float:
        """Return all of it, negative: what is not held does not count."""
        return -charged

    def undone(self, lease: Lease, charged: float, *, full: bool) -> float:
        """Return 0: while the slots drain they are held, and then nothing is left to give back."""
        return 0.0

    def idle(self, slot_seconds: float, service_s: float) -> float:
        """Return 0: the past does not count."""
        return 0.0


class Arrival(Exact):
    """Policy `fifo`: nobody is charged, so that the order of arrival decides. Not fair: for comparison."""

    lifts = False

    def at_dispatch(self, request: Request) -> float:
        """Return 0."""
        return 0.0

    def idle(self, slot_seconds: float, service_s: float) -> float:
        """Return 0."""
        return 0.0
