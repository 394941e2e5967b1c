"""A model as admission serves it: its backends, its lines, its speed, what its refused callers are told."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from inferencemesh.core.estimate import Pace, Speed
from inferencemesh.core.line import Line
from inferencemesh.core.model import ModelSpec
from inferencemesh.core.prospects import Prospects
from inferencemesh.core.request import Request
from inferencemesh.core.routing import Route
from inferencemesh.core.slots import Backend
from inferencemesh.core.tenant import Tenant

if TYPE_CHECKING:
    from inferencemesh.core.charge import ChargePolicy
    from inferencemesh.core.flow import Need
    from inferencemesh.core.pool import Pool


class Served:
    """One model. Which pool it belongs to is decided once, from the backends that models share."""

    __slots__ = (
        "charge",
        "line",
        "lines",
        "most",
        "name",
        "narrow",
        "pace",
        "pool",
        "prospects",
        "reach",
        "route",
        "spec",
        "speed",
        "usual",
    )

    def __init__(
        self,
        spec: ModelSpec,
        backends: Sequence[Backend],
        pool: Pool,
        rng: random.Random,
        *,
        charge: ChargePolicy,
        most: int | None = None,
        reach: int = 0,
        apart: Iterable[str] = (),
    ) -> None:
        """`most` is the bound on slots over all backends.

        `apart` are the classes, beside those with a line of their own, whose waiters have a pace of their own.
        """
        self.spec = spec
        self.name = spec.name
        self.route = Route(backends, spec.routing)
        self.pool = pool
        self.charge = charge
        self.most = most
        self.reach = reach  # the same number for models that have the same backends
        self.line = Line(spec)
        self.lines = {name: Line(own) for name, own in spec.by_class}  # of classes that have their own
        self.narrow: Need | None = None  # what requests of width 1 and no limited class need
        self.pace = Pace()  # of all its lines together
        self.speed = Speed(self.pace)
        names = dict.fromkeys((*self.lines, *apart))
        self.prospects = {name: Prospects(rng, self.pace, Pace()) for name in names}
        own = (Pace(),) if names else ()
        self.usual = Prospects(rng, self.pace, *own)  # of all other classes

    @property
    def waiting(self) -> int:
        """How many requests wait, over all of its lines."""
        return self.pace.waiting

    @property
    def all_lines(self) -> tuple[Line, ...]:
        """Its own, and those of classes."""
        return (self.line, *self.lines.values())

    def line_of(self, request: Request) -> Line:
        """Return the line in which `request` has its place, or would have it."""
        return self.lines.get(request.class_name, self.line) if self.lines else self.line

    def prospects_of(self, request: Request) -> Prospects:
        """Return what those of the class of `request` may expect."""
        return self.prospects.get(request.class_name, self.usual) if self.prospects else self.usual

    def widest(self, request: Request, tenant: Tenant) -> int:
        """Return how many slots a request of this tenant and class can ever have at once (A13)."""
        group = request._class
        limits = (tenant.max_running, self.most, group.max_running if group is not None else None)
        return min(self.route.widest, *(limit or self.route.widest for limit in limits))

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

    def told_wait_s(self, request: Request, tenant: Tenant, line: Line, now: float) -> float:
        """Return the wait that the refused `request` would probably have had, by the pace of its class and its limits.

        `judge` does not refuse by it: how long the requests of one tenant or class last is not known apart.
        """
        per_s = self.pace_of(request, now)
        waiting = self.prospects_of(request).paces[-1].waiting
        ahead = min(_waiting(tenant, line), waiting) + 1
        wait_s = ahead * request.width / (per_s * self._due_of_speed(request, tenant, line))
        if request.width == 1:  # else its slots are those of so many that its tenant would have had
            # Nobody who comes later overtakes it, but for those whose tenants cost less.
            wait_s = min(wait_s, (waiting + 1) / per_s * max(1.0, self.charge.relative(request)))
        if tenant.max_running:
            wait_s = max(wait_s, ahead * request.width * self.speed.service_s() / tenant.max_running)
        return wait_s

    def _due_of_speed(self, request: Request, tenant: Tenant, line: Line) -> float:
        """Return the part of the grants that is due to `tenant`: fewer than its share where its requests cost more."""
        return min(1.0, self.share_of_speed(tenant, line) / self.charge.relative(request))

    def pace_of(self, request: Request, now: float) -> float:
        """Return how many waiters of the class of `request` are granted per second."""
        per_s = self.per_s()
        paces = self.prospects_of(request).paces
        if len(paces) == 1:
            return per_s
        group = request._class
        if group is not None and group.max_running is not None:
            per_s = min(per_s, group.max_running / self.speed.service_s())
        return paces[-1].per_s(now, per_s)

    def quiet_s(self, now: float) -> float:
        """Return for how long nothing may be tried on any of its backends, as they themselves have asked (B6)."""
        ends = [backend.quiet_until for backend in self.route.backends]
        return max(0.0, min((end - now if end is not None else 0.0 for end in ends), default=0.0))

    def retry_after_s(self, request: Request, tenant: Tenant, now: float, line: Line) -> float:
        """Return when the refused caller of `request` should come back: seconds within (0, 60], spread.

        That is when half of the places that it may have are free again, after those who were told to come before it.
        """
        share = self.share_of_speed(tenant, line)
        rate = self.pace_of(request, now) * self._due_of_speed(request, tenant, line)
        if tenant.max_running:
            rate = min(rate, tenant.max_running / self.speed.service_s())
        waiting = _waiting(tenant, line)
        backlog = waiting - self.limit(line) * share / 2
        if tenant.max_waiting is not None:
            backlog = max(backlog, tenant.waiting - tenant.max_waiting / 2)
        if line.spec.max_waiting_per_tenant is not None:
            backlog = max(backlog, waiting - line.spec.max_waiting_per_tenant / 2)
        return self.prospects_of(request).tickets.draw(tenant.name, now, rate, backlog, request.width)


def _waiting(tenant: Tenant, line: Line) -> int:
    place = line.tenants.get(tenant)
    return place.count if place is not None else 0
