"""Tenants that ask again as soon as they are answered, in virtual time: who is served how often, who waits how long.

Each flood is so many callers of one tenant for one model, class and width. Everything is drawn from a seed.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from inferencemesh.core.admission import Admission, Effect, Granted, Queued
from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Lease, Request

DONE = Outcome(Phase.COMPLETE, "ok")


@dataclass(frozen=True, slots=True)
class Flood:
    """`callers` of one tenant; each pauses for `pause_s` after an answer, for a tenth of a second after a refusal."""

    tenant: str
    callers: int
    lasts_s: tuple[float, float] = (0.5, 1.5)
    model: str = "m"
    klass: str = ""
    width: int = 1
    pause_s: float = 0.0
    tokens_per_s: float = 0.0
    offset_s: float = 0.0


class Floods:
    """See the module. `granted` counts grants; `waited` has, for each, how many leases ended while it waited."""

    def __init__(
        self,
        backends: Sequence[BackendSpec],
        models: Sequence[ModelSpec],
        tenants: Sequence[TenantSpec],
        *,
        seed: int = 1,
        **options: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.admission = Admission(
            backends, models, tenants, Limits(), rng=random.Random(seed + 1), **options
        )
        self.now = 0.0
        self.granted: Counter[str] = Counter()
        self.grants: list[tuple[str, str]] = []  # tenant and class, in their order
        self.waited: dict[str, list[int]] = defaultdict(list)
        self.held_s: dict[str, float] = defaultdict(float)
        self.released = 0
        self._events: list[tuple[float, int, Any]] = []
        self._numbers = count()
        self._asked: dict[Request, tuple[Flood, int]] = {}

    def add(self, flood: Flood) -> None:
        """Its callers begin within the next second."""
        for _ in range(flood.callers):
            self._at(self.rng.random(), partial(self._ask, flood))

    def run(self, seconds: float) -> None:
        """Go on for so long."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heappop(self._events)
            do()
        self.now = until

    def forget(self) -> None:
        """Count from here."""
        self.granted.clear()
        self.grants.clear()
        self.waited.clear()
        self.held_s.clear()

    def _at(self, after_s: float, do: Any) -> None:
        heappush(self._events, (self.now + after_s, next(self._numbers), do))

    def _ask(self, flood: Flood) -> None:
        request = Request(
            "r",
            flood.tenant,
            flood.model,
            flood.width,
            class_offset_s=flood.offset_s,
            arrived_at=self.now,
            deadline_at=self.now + 1e6,
            class_name=flood.klass,
        )
        self._asked[request] = (flood, self.released)
        effects = self.admission.offer(request, self.now)
        self._apply(effects)

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Queued):
                continue
            flood, released = self._asked.pop(effect.request)
            if isinstance(effect, Granted):
                self.granted[flood.tenant] += 1
                self.grants.append((flood.tenant, flood.klass))
                self.waited[flood.tenant].append(self.released - released)
                self._at(self.rng.uniform(*flood.lasts_s), partial(self._end, flood, effect.lease))
            else:
                self._at(0.1, partial(self._ask, flood))

    def _end(self, flood: Flood, lease: Lease) -> None:
        held_s = self.now - lease.granted_at
        self.held_s[flood.tenant] += held_s * lease.width
        self.released += 1
        if flood.tokens_per_s:
            lease.input_tokens, lease.output_tokens = 10, int(held_s * flood.tokens_per_s)
        self._apply(self.admission.release(lease, self.now))
        self._apply(self.admission.settle(lease.request, DONE, self.now))
        self._at(flood.pause_s, partial(self._ask, flood))
