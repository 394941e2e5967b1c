"""A circuit breaker: a backend whose answers keep failing is left alone for a while, then tried with care.

Closed → open when `ratio` of at least `min_requests` results within `window_s` are failures; open → half-open
after `open_for_s`; half-open → closed after `half_open` successes, or open again at the first failure.
Whether it *may* open is not its own decision: never the model's last backend.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from inferencemesh.core.model import BreakerSpec

_PARTS = 10  # the window moves in tenths


class BreakerState(StrEnum):
    """What the breaker lets through: everything, nothing, or a few at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """The breaker of one backend. Instants are monotonic seconds."""

    __slots__ = ("_failures", "_parts", "_successes", "_total", "open_until", "probes", "spec", "state")

    def __init__(self, spec: BreakerSpec) -> None:
        self.spec = spec
        self.state = BreakerState.CLOSED
        self.open_until = 0.0
        self.probes = 0  # requests let through while half-open and not yet ended
        self._parts: deque[list[int]] = deque()  # [part number, results, failures]
        self._total = 0
        self._failures = 0
        self._successes = 0  # while half-open

    def record(self, ok: bool, now: float) -> bool:
        """Count one result; return whether the breaker should open now."""
        if self.state is BreakerState.OPEN:
            return False  # a straggler from before: nothing new
        if self.state is BreakerState.HALF_OPEN:
            if not ok:
                return True
            self._successes += 1
            if self._successes >= self.spec.half_open:
                self.close()
            return False
        part = int(now * _PARTS / self.spec.window_s)
        parts = self._parts
        while parts and parts[0][0] <= part - _PARTS:
            _, total, failures = parts.popleft()
            self._total -= total
            self._failures -= failures
        if not parts or parts[-1][0] != part:
            parts.append([part, 0, 0])
        parts[-1][1] += 1
        self._total += 1
        if not ok:
            parts[-1][2] += 1
            self._failures += 1
        return (
            not ok
            and self._total >= self.spec.min_requests
            and self._failures >= self.spec.ratio * self._total
        )

    def open(self, now: float) -> None:
        """Leave the backend alone until `open_until`."""
        self.state = BreakerState.OPEN
        self.open_until = now + self.spec.open_for_s

    def half_open(self) -> None:
        """Let a few requests try it."""
        self.state = BreakerState.HALF_OPEN
        self._successes = 0

    def close(self) -> None:
        """Trust the backend again; what was counted is forgotten."""
        self.state = BreakerState.CLOSED
        self._parts.clear()
        self._total = self._failures = 0
