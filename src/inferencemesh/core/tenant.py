"""One tenant as admission counts it: its limits, what it holds, where it waits. Exact at every instant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferencemesh.core.model import TenantSpec

if TYPE_CHECKING:
    from inferencemesh.core.fairqueue import FairQueue
    from inferencemesh.core.flow import Flow
    from inferencemesh.core.line import Line, TenantLine
    from inferencemesh.core.request import Request

SCALE = 1_000_000_000
"""Service is counted in whole billionths of a unit: sums are exact, ties are ties, a refund undoes its charge."""


class Tenant:
    """The state of one tenant over all pools. Dynamic ones (not configured) are forgotten when idle."""

    __slots__ = (
        "charged",
        "collecting",
        "configured",
        "draining",
        "flows",
        "known",
        "latest",
        "lines",
        "max_running",
        "max_waiting",
        "name",
        "parked",
        "parked_for",
        "reserved",
        "running",
        "standing",
        "step",
        "waiting",
        "weight",
    )

    def __init__(self, spec: TenantSpec, *, configured: bool) -> None:
        self.name = spec.name
        self.weight = spec.weight
        self.step = round(SCALE / spec.weight)  # virtual service per unit of charge
        self.max_running = spec.max_running
        self.max_waiting = spec.max_waiting
        self.reserved = spec.reserved
        self.configured = configured
        self.known = configured  # whether admission remembers it under its name
        self.running = 0  # slots
        self.draining = 0  # slots
        self.collecting = 0  # slots that its collecting waiters will take
        self.waiting = 0  # requests
        self.charged = 0.0  # service in the charge policy's unit, since it is known
        self.standing = 0  # its virtual service where it was last charged or lifted: breaks ties of places
        self.parked = spec.max_running == 0  # outside every fair line until a slot of its own is free (D1)
        self.parked_for: Request | None = None  # its head, if that is too wide for what its limit leaves
        self.flows: dict[FairQueue, Flow] = {}
        self.latest: Flow | None = None  # the one of its flows that was asked for last
        self.lines: dict[Line, TenantLine] = {}  # only where it has waiters

    def __repr__(self) -> str:
        return f"<Tenant {self.name} running={self.running}+{self.draining} waiting={self.waiting}>"

    @property
    def held(self) -> int:
        """Slots counted against `max_running`: running, draining, or set aside for a collecting waiter."""
        return self.running + self.draining + self.collecting

    def room_for(self, width: int) -> bool:
        """Whether its own limit leaves `width` slots."""
        return self.max_running is None or self.held + width <= self.max_running

    def comes_first(self, width: int) -> bool:
        """Whether so many slots more are within what is reserved for it."""
        return self.held + width <= self.reserved

    @property
    def idle(self) -> bool:
        """Whether nothing of it is waiting, held or remembered."""
        return not (self.waiting or self.held or self.flows)
