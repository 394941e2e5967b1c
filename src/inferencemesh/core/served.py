"""A model as admission serves it: its backends, its line, its speed, the tickets of its refused callers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferencemesh.core.claims import Claims
from inferencemesh.core.estimate import Speed, Tickets
from inferencemesh.core.line import Line
from inferencemesh.core.model import ModelSpec
from inferencemesh.core.request import Request
from inferencemesh.core.routing import Route
from inferencemesh.core.slots import Backend
from inferencemesh.core.tenant import Tenant

if TYPE_CHECKING:
    from inferencemesh.core.flow import Need
    from inferencemesh.core.pool import Pool


class Served:
    """One model. Which pool it belongs to is decided once, from the backends that models share."""

    __slots__ = (
        "claims",
        "line",
        "lines",
        "name",
        "narrow",
        "pool",
        "route",
        "spec",
        "speed",
        "tickets",
        "waiting",
    )

    def __init__(self, spec: ModelSpec, backends: Sequence[Backend], pool: Pool, rng: random.Random) -> None:
        self.spec = spec
        self.name = spec.name
        self.route = Route(backends, spec.routing)
        self.pool = pool
        self.line = Line(spec)
        self.lines = {name: Line(own) for name, own in spec.by_class}  # of classes that have their own
        self.narrow: Need | None = None  # what requests of width 1 and no limited class need
        self.waiting = 0  # requests, over all of its lines
        self.speed = Speed()
        self.tickets = Tickets(rng)
        self.claims = Claims()

    def line_of(self, request: Request) -> Line:
        """Return the line in which `request` has its place, or would have it."""
        return self.lines.get(request.class_name, self.line) if self.lines else self.line

    def limit(self, line: Line) -> int:
        """Return the bound of `line` in force now."""
        if line.spec.max_waiting is not None:
            return line.spec.max_waiting
        return line.limit(self.route.usable_slots, self.speed.service_s())

    def per_s(self, *, at_best: bool = False) -> float:
        """Return how many waiters the line loses to grants per second."""
        slots = self.route.usable_slots
        return self.speed.at_best_per_s(slots) if at_best else self.speed.per_s(slots)

    def share_of_speed(self, tenant: Tenant, line: Line) -> float:
        """Return the part of the line's speed that is due to `tenant` among those that wait, itself included."""
        return tenant.weight / line.places.weights_with(tenant)

    def wait_s(self, tenant: Tenant, ahead: int, line: Line, *, at_best: bool = False) -> float:
        """Return the expected wait of a newcomer that would be the `ahead`-th of its tenant in the line.

        The lesser of what the whole line takes and what its tenant's share takes.
        """
        per_s = self.per_s(at_best=at_best)
        return min((self.waiting + 1) / per_s, ahead / (per_s * self.share_of_speed(tenant, line)))

    def told_wait_s(self, request: Request, tenant: Tenant, line: Line) -> float:
        """Return the wait that the refused `request` would probably have had: `wait_s`, and what limits make of it.

        `judge` does not refuse by it: how long the requests of one tenant or class last is not known apart.
        """
        ahead = _waiting(tenant, line) + 1
        if request.width == 1:
            wait_s = self.wait_s(tenant, ahead, line)
        else:  # its slots are those of so many that its tenant would have had
            wait_s = ahead * request.width / (self.per_s() * self.share_of_speed(tenant, line))
        limit = self._limit_of(request, tenant)
        if limit is not None:
            most, whole_class = limit
            before = line.count + 1 if whole_class and line is not self.line else ahead
            wait_s = max(wait_s, before * request.width * self.speed.service_s() / most)
        return wait_s

    def _limit_of(self, request: Request, tenant: Tenant) -> tuple[int, bool] | None:
        """Return the narrowest limit on slots that `request` is under, and whether it is its class's; None without."""
        group = request._class
        limits = [(tenant.max_running, False)] if tenant.max_running else []
        if group is not None and group.max_running is not None:
            limits.append((group.max_running, True))
        return min(limits, default=None)

    def quiet_s(self, now: float) -> float:
        """Return for how long nothing may be tried on any of its backends, as they themselves have asked (B6)."""
        ends = [backend.quiet_until for backend in self.route.backends]
        return max(0.0, min((end - now if end is not None else 0.0 for end in ends), default=0.0))

    def retry_after_s(self, request: Request, tenant: Tenant, now: float, line: Line) -> float:
        """Return when the refused caller of `request` should come back: seconds within (0, 60], spread."""
        share = self.share_of_speed(tenant, line)
        rate = self.per_s() * share
        if tenant.max_running:
            rate = min(rate, tenant.max_running / self.speed.service_s())
        backlog = _waiting(tenant, line) - self.limit(line) * share / 2
        return self.tickets.draw(tenant.name, now, rate, backlog, request.width)


def _waiting(tenant: Tenant, line: Line) -> int:
    place = line.tenants.get(tenant)
    return place.count if place is not None else 0
