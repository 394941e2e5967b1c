"""What a grant costs its tenant (contract D3): the seam between the scheduler and the unit of service.

The scheduler only ever adds what a policy returns to a tenant's service. A policy that does not know the cost
at dispatch charges an estimate there and gives the difference at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inferencemesh.core.request import Lease, Request


class ChargePolicy(Protocol):
    """How service is measured. Amounts are in the policy's unit (slots, slot-seconds, tokens)."""

    corrects: bool  # whether `at_end` can be other than 0: spares the call on the hot path

    def at_dispatch(self, request: Request) -> float:
        """Return the charge of granting `request`, taken before anything of its cost is known."""

    def at_end(self, lease: Lease, charged: float, now: float) -> float:
        """Return what to add once the slots are free again; negative where `charged` was too much."""


class PerSlot:
    """1 per slot of width, final at dispatch. Two backlogged tenants differ by at most one charge each (bound B1:
    `|D_i/w_i - D_j/w_j| <= e_max/w_i + e_max/w_j`), whatever the number of slots.
    """  # noqa: D205

    corrects = False

    def at_dispatch(self, request: Request) -> float:
        """Return the width."""
        return request.width

    def at_end(self, lease: Lease, charged: float, now: float) -> float:
        """Return 0: the charge was exact."""
        return 0
