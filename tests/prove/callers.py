"""Callers that do what a refusal tells them, in virtual time against the core: what `Retry-After` is worth.

An open or closed crowd asks one model; who is refused comes back when it was told to (up to `lateness_s` later, as
clients do) and asks again. Everything is drawn from a seed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

from inferencemesh.core.admission import Admission, Displaced, Effect, Expired, Granted, Refused
from inferencemesh.core.model import BackendSpec, ClassSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Lease, Request

DONE = Outcome(Phase.COMPLETE, "ok")


@dataclass(slots=True)
class Told:
    """What has become of the callers."""

    refusals: int = 0
    returns: int = 0
    kept: int = 0  # returns at the time told that found a slot or a place
    served: int = 0
    worst: int = 0  # refusals of the unluckiest request
    waits: list[float] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)  # as refusals told them
    ended_at: float = 0.0


class Crowd:
    """`callers` of one tenant at `slots` slots; each asks `times` times (for ever if 0), `think_s` after an answer."""

    def __init__(
        self,
        seed: int,
        *,
        callers: int,
        slots: int = 32,
        service_s: Callable[[random.Random], float],
        think_s: Callable[[random.Random], float],
        times: int = 0,
        retry_after_s: Callable[[float], float] = lambda told: told,
        lateness_s: float = 2.0,
        deadline_s: float = 600.0,
        says: bool = True,
        model: ModelSpec | None = None,
        tenant: TenantSpec | None = None,
        classes: Sequence[ClassSpec] = (),
        floor: float | None = None,
        class_of: Callable[[int], str] = lambda caller: "",
    ) -> None:
        """`told` is of all callers, `told_of` by class."""
        self.rng = random.Random(seed)
        self.admission = Admission(
            [BackendSpec("b", slots)],
            [model or ModelSpec("m", ("b",), queue_timeout_s=600.0)],
            [tenant or TenantSpec("t")],
            Limits(),
            rng=random.Random(seed + 1),
            classes=classes,
            floor=floor,
        )
        self.class_of = class_of
        self.told_of: dict[str, Told] = defaultdict(Told)
        self.service_s = service_s
        self.think_s = think_s
        self.times = times
        self.retry_after_s = retry_after_s
        self.lateness_s = lateness_s
        self.deadline_s = deadline_s
        self.says = says  # whether callers say that they try again, as the SDKs do
        self.told = Told()
        self.now = 0.0
        self.measured_from = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._refused: dict[int, int] = {}
        self._left = dict.fromkeys(range(callers), times)
        for caller in range(callers):
            self._at(self.think_s(self.rng), partial(self._ask, caller, returns=False))

    def _at(self, after_s: float, do: Callable[[], None]) -> None:
        heappush(self._events, (self.now + after_s, next(self._numbers), do))

    def run(self, until: float = float("inf"), *, measured_from: float = 0.0) -> Told:
        """Run until then, or until every caller has been served as often as it wants."""
        self.measured_from = measured_from
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heappop(self._events)
            do()
            wake = self.admission.next_wake_at()
            if wake is not None and wake <= self.now:
                self._apply(self.admission.expire(self.now))
        self.told.ended_at = self.now
        return self.told

    def _ask(self, caller: int, *, returns: bool) -> None:
        request = Request(
            str(caller),
            "t",
            "m",
            arrived_at=self.now,
            deadline_at=self.now + self.deadline_s,
            returns=returns if self.says else None,
            class_name=self.class_of(caller),
        )
        effects = self.admission.offer(request, self.now)
        refused = any(isinstance(effect, Refused) and effect.request is request for effect in effects)
        if returns and self.now >= self.measured_from:
            for told in (self.told, self.told_of[request.class_name]):
                told.returns += 1
                told.kept += not refused
        self._apply(effects)

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            caller = int(effect.request.id)
            of_class = self.told_of[effect.request.class_name]
            if isinstance(effect, Granted):
                self.told.waits.append(effect.request.waited_s)
                if self.now >= self.measured_from:
                    of_class.waits.append(effect.request.waited_s)
                self._refused.pop(caller, None)
                self._at(self.service_s(self.rng), partial(self._end, caller, effect.lease))
            elif isinstance(effect, Refused | Expired | Displaced):
                self.told.refusals += 1
                if self.now >= self.measured_from and effect.refusal.estimate_s is not None:
                    of_class.estimates.append(effect.refusal.estimate_s)
                self._refused[caller] = refused = self._refused.get(caller, 0) + 1
                self.told.worst = max(self.told.worst, refused)
                told_s = self.retry_after_s(effect.refusal.retry_after_s)
                late_s = self.rng.random() * self.lateness_s
                self._at(told_s + late_s, partial(self._ask, caller, returns=True))

    def _end(self, caller: int, lease: Lease) -> None:
        self._apply(self.admission.release(lease, self.now))
        self._apply(self.admission.settle(lease.request, DONE, self.now))
        self.told.served += 1
        self._left[caller] -= 1
        if self._left[caller] != 0:
            self._at(self.think_s(self.rng), partial(self._ask, caller, returns=False))
