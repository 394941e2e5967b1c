"""One vocabulary of steps for everything that drives admission here: the real core, the oracle, the explorer.

A step is a tuple, a history a list of them; requests and leases are named, so that a history can be printed,
replayed, and given to both. What a step decides is a list of tuples, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from inferencemesh.core.admission import Admission, Displaced, Effect, Expired, Granted, Queued, Refused
from inferencemesh.core.charge import Arrival, ChargePolicy, PerHeldSlot, PerSlot
from inferencemesh.core.estimate import Speed
from inferencemesh.core.metered import SlotSeconds
from inferencemesh.core.model import BackendSpec, ClassSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Lease, LeaseState, Request, RequestState

CAP_S = 4.0  # C: of all requests, where slot-seconds are charged
CHARGES: dict[str, Callable[[], ChargePolicy]] = {
    "requests": PerSlot,
    "slot_seconds": lambda: SlotSeconds(fixed_s=CAP_S),
    "slots": PerHeldSlot,
    "fifo": Arrival,
}

Step = tuple[Any, ...]
Decision = tuple[str, ...]
LeaseName = tuple[str, int]  # the request and the number of its grant, from 0

SERVICE_S = 2.0
DONE = Outcome(Phase.COMPLETE, "ok")
FAILED = Outcome(Phase.BEFORE_HEADERS, "upstream_error")
GONE = Outcome(Phase.BEFORE_HEADERS, "client_gone")


@dataclass(frozen=True)
class Setting:
    """What a history happens in."""

    backends: tuple[BackendSpec, ...]
    models: tuple[ModelSpec, ...]
    tenants: tuple[TenantSpec, ...] = ()
    limits: Limits = field(default_factory=Limits)
    charge: str = "requests"  # | slot_seconds | slots | fifo
    classes: tuple[ClassSpec, ...] = ()
    floor: float | None = None  # of strict classes


class NoChance(random.Random):
    """Chance taken out: what is spread over callers is not spread, so that times can be compared."""

    def random(self) -> float:
        return 0.0

    def uniform(self, a: float, b: float) -> float:
        return a


NO_CHANCE = NoChance(0)


class Steady(Speed):
    """A mean service time that does not depend on what was measured."""

    __slots__ = ()

    def service_s(self) -> float:
        return SERVICE_S

    def per_s(self, slots: int) -> float:
        return max(slots, 1) / SERVICE_S


def offer(
    name: str,
    tenant: str,
    model: str = "m",
    width: int = 1,
    size: int = 0,
    offset: float = 0.0,
    ttl: float = 1e6,
    klass: str = "",
) -> Step:
    return ("offer", name, tenant, model, width, size, offset, ttl, klass)


class Core:
    """The real admission, driven by steps."""

    __slots__ = ("admission", "effects", "leases", "now", "requests")

    def __init__(self, setting: Setting, *, rng: random.Random | None = None, measured: bool = False) -> None:
        self.admission = Admission(
            setting.backends,
            setting.models,
            setting.tenants,
            setting.limits,
            rng=rng or NO_CHANCE,
            charge=CHARGES[setting.charge](),
            classes=setting.classes,
            floor=setting.floor,
        )
        if not measured:
            for model in self.admission._state.models.values():
                model.speed = Steady()
        self.now = 0.0
        self.requests: dict[str, Request] = {}
        self.leases: dict[LeaseName, Lease] = {}
        self.effects: list[Effect] = []  # of the last step

    def do(self, step: Step) -> list[Decision]:
        """Make a step; return what was decided."""
        self.effects = self._make(step)
        decisions = []
        for effect in self.effects:
            if isinstance(effect, Granted):
                number = sum(1 for name, _ in self.leases if name == effect.request.id)
                self.leases[effect.request.id, number] = effect.lease
            decisions.append(told(effect))
        return decisions

    def _make(self, step: Step) -> list[Effect]:
        admission, now = self.admission, self.now
        match step:
            case ("offer", name, tenant, model, width, size, offset, ttl, klass):
                request = Request(
                    name,
                    tenant,
                    model,
                    width,
                    size,
                    offset,
                    arrived_at=now,
                    deadline_at=now + ttl,
                    class_name=klass,
                )
                self.requests[name] = request
                return admission.offer(request, now)
            case ("cancel", name):
                return admission.cancel(self.requests[name], GONE, now)
            case ("release", *lease):
                return admission.release(self.leases[tuple(lease)], now)
            case ("drain", *lease):
                return admission.drain(self.leases[tuple(lease)], now)
            case ("confirm", *lease):
                return admission.confirm(self.leases[tuple(lease)], "seen", now)
            case ("started", *lease):
                return admission.started(self.leases[tuple(lease)], now)
            case ("settle", name, ok):
                return admission.settle(self.requests[name], DONE if ok else FAILED, now)
            case ("requeue", name, full, avoid, not_before):
                return admission.requeue(
                    self.leases[self.current(name)], now, full=full, avoid=avoid, not_before_s=not_before
                )
            case ("resize", backend, slots):
                return admission.resize(backend, slots, now)
            case ("up", backend, up):
                return admission.set_up(backend, up, now)
            case ("cordon", backend, on):
                return admission.cordon(backend, on, now)
            case ("close",):
                admission.refuse_all()
                return []
            case ("pass", seconds):  # time goes by, and nobody has called `expire` yet
                self.now = now + seconds
                return []
            case ("expire",):
                return admission.expire(now)
        raise ValueError(step)

    def wake_at(self) -> float | None:
        return self.admission.next_wake_at()

    # --- what may be done -----------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        return [name for name, r in self.requests.items() if r.state is RequestState.WAITING]

    def running(self) -> list[str]:
        return [name for name, r in self.requests.items() if r.state is RequestState.RUNNING]

    def open_leases(self, *states: LeaseState) -> list[LeaseName]:
        return [name for name, lease in self.leases.items() if lease.state in states]

    def current(self, name: str) -> LeaseName:
        """The lease that a running request runs under."""
        lease = self.requests[name].lease
        return next(key for key, value in self.leases.items() if value is lease)


def told(effect: Effect) -> Decision:
    """An effect in words."""
    name = effect.request.id
    match effect:
        case Granted(lease=lease):
            return ("granted", name, lease.backend.name)
        case Queued():
            return ("queued", name)
        case Refused(refusal=refusal):
            return ("refused", name, refusal.code)
        case Expired(refusal=refusal):
            return ("expired", name, refusal.code)
        case Displaced():
            return ("displaced", name)
