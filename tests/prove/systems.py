"""Random systems of tenants at N slots in virtual time, for the bounds on fairness (see `test_bounds`).

Tenants come and go; one that is there always has waiters. After each event a looker-on may look. Width is 1.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from inferencemesh.core.admission import Admission, Effect, Granted
from inferencemesh.core.charge import ChargePolicy
from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Lease, Request
from inferencemesh.core.tenant import SCALE

DONE = Outcome(Phase.COMPLETE, "ok")


@dataclass(frozen=True)
class Actor:
    """One tenant: how long its requests last, and when it is there."""

    name: str
    weight: float
    lasts_s: Callable[[random.Random], float]
    there: tuple[tuple[float, float], ...] = ((0.0, float("inf")),)
    backlog: int = 3
    max_running: int | None = None


@dataclass(slots=True)
class Dispatch:
    """One grant."""

    tenant: str
    at: float
    request: Request
    releases_waited: int


@dataclass
class System:
    """N slots of one backend, and its tenants."""

    slots: int
    actors: Sequence[Actor]
    charge: ChargePolicy
    seed: int = 0
    look: Callable[[System], None] | None = None
    tokens: Callable[[str, float], int] | None = None  # of a tenant's answer that lasts so long
    now: float = 0.0
    dispatched: list[Dispatch] = field(default_factory=list)
    served_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # of ended requests
    served_tokens: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    served: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    joined_at: dict[str, float] = field(default_factory=dict)  # those that are there now
    last_join_at: float = 0.0  # of anybody, whether it is still there or not

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.actor = {actor.name: actor for actor in self.actors}
        self.admission = Admission(
            [BackendSpec("b", self.slots)],
            [ModelSpec("m", ("b",), 100_000, queue_timeout_s=1e12, refuse_hopeless=False)],
            [TenantSpec(a.name, a.weight, a.max_running) for a in self.actors],
            Limits(max_waiting_total=1_000_000),
            rng=random.Random(self.seed),
            charge=self.charge,
        )
        self.open: dict[Lease, None] = {}
        self.waiting: dict[str, int] = defaultdict(int)
        self.releases = 0
        self._came_at: dict[Request, int] = {}
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for actor in self.actors:
            for start, end in actor.there:
                self._at(start, lambda actor=actor: self._join(actor))  # type: ignore[misc]
                if end < float("inf"):
                    self._at(end, lambda actor=actor: self._part(actor))  # type: ignore[misc]

    def run(self, grants: int, *, until: float = float("inf")) -> System:
        """Run to so many grants."""
        while self._events and len(self.dispatched) < grants and self._events[0][0] <= until:
            self.now, _, do = heappop(self._events)
            do()
            self._apply(self.admission.expire(self.now))  # charges are as they are at the next decision
            if self.look is not None:
                self.look(self)
        return self

    # --- what bounds speak of -------------------------------------------------------------------------------

    @property
    def virtual(self) -> float:
        """V."""
        return self.admission._state.pools[0].queue.v / SCALE

    def counters(self) -> dict[str, float]:
        """F of those that wait and may be served."""
        queue = self.admission._state.pools[0].queue
        return {
            tenant.name: flow.service / SCALE
            for tenant, flow in queue.flows.items()
            if flow.waiting and not tenant.parked
        }

    def held(self) -> dict[str, int]:
        """Slots by tenant."""
        counts: dict[str, int] = defaultdict(int)
        for lease in self.open:
            counts[lease.request.tenant] += 1
        return counts

    def weight(self, tenant: str) -> float:
        return self.actor[tenant].weight

    # --- what happens ---------------------------------------------------------------------------------------

    def _at(self, at: float, do: Callable[[], None]) -> None:
        heappush(self._events, (at, next(self._numbers), do))

    def _join(self, actor: Actor) -> None:
        self.joined_at[actor.name] = self.last_join_at = self.now
        self.refill(actor.name)

    def _part(self, actor: Actor) -> None:
        del self.joined_at[actor.name]
        for request in [r for r in self._came_at if r.tenant == actor.name]:
            del self._came_at[request]
            self.waiting[actor.name] -= 1
            gone = Outcome(Phase.BEFORE_HEADERS, "client_gone")
            self._apply(self.admission.cancel(request, gone, self.now))

    def refill(self, name: str) -> None:
        while name in self.joined_at and self.waiting[name] < self.actor[name].backlog:
            self.offer(name)

    def offer(self, name: str, *, size: int = 0) -> Request:
        request = Request(
            f"r{next(self._numbers)}", name, "m", 1, size, arrived_at=self.now, deadline_at=1e15
        )
        self._came_at[request] = self.releases
        self.waiting[name] += 1
        self._apply(self.admission.offer(request, self.now))
        return request

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Granted):
                request = effect.request
                name = request.tenant
                self.waiting[name] -= 1
                waited = self.releases - self._came_at.pop(request)
                self.dispatched.append(Dispatch(name, self.now, request, waited))
                lease = effect.lease
                self.open[lease] = None
                lasts_s = self.actor[name].lasts_s(self.rng)
                self._at(self.now + lasts_s, lambda lease=lease: self._end(lease))  # type: ignore[misc]
                self.refill(name)

    def _end(self, lease: Lease) -> None:
        name = lease.request.tenant
        lasted_s = self.now - lease.granted_at
        if self.tokens is not None:
            lease.input_tokens = 0
            lease.output_tokens = self.tokens(name, lasted_s)
            self.served_tokens[name] += lease.output_tokens
        del self.open[lease]
        self.releases += 1
        self.served[name] += 1
        self.served_s[name] += lasted_s
        self._apply(self.admission.release(lease, self.now))
        self._apply(self.admission.settle(lease.request, DONE, self.now))
