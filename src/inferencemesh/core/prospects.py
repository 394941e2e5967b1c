"""What a refused caller may expect (contract A10): at which pace its kind of waiter is granted, and its ticket.

A model has one of these, and one more for each class whose waiters do not go at the model's own pace: a class with a
line of its own, with a limit on its slots, or with a rank where classes are strict.
"""

from __future__ import annotations

import random
from math import exp

from inferencemesh.core.estimate import DECAY, Tickets

ENOUGH = 5.0
"""Grants (decayed) after which the measured pace alone counts."""


class Pace:
    """Grants per second to the waiters of one class, measured while there are any; as `Speed`, of service apart."""

    __slots__ = ("_at", "_granted", "_seconds", "waiting")

    def __init__(self) -> None:
        self.waiting = 0  # requests
        self._at = 0.0
        self._granted = 0.0  # decayed by the seconds with somebody waiting,
        self._seconds = 0.0  # and so are these themselves

    def enter(self, now: float) -> None:
        """A request has begun to wait."""
        self._advance(now)
        self.waiting += 1

    def leave(self, now: float) -> None:
        """It waits no longer, for whatever reason."""
        self._advance(now)
        self.waiting -= 1

    def granted(self, now: float) -> None:
        """It is about to leave with a grant."""
        self._advance(now)
        self._granted += 1.0

    def per_s(self, now: float, otherwise: float) -> float:
        """Return the grants per second: as measured if it is, else `otherwise`, or less if that is seen already."""
        self._advance(now)
        if self._granted >= ENOUGH and self._seconds > 0.0:
            return self._granted / self._seconds
        if self._seconds * otherwise > self._granted + 1.0:
            return (self._granted + 1.0) / self._seconds
        return otherwise

    def _advance(self, now: float) -> None:
        elapsed = now - self._at
        self._at = now
        if self.waiting and elapsed > 0:
            kept = exp(-elapsed * DECAY)
            self._granted *= kept
            self._seconds = self._seconds * kept + (1.0 - kept) / DECAY


class Prospects:
    """See the module. `pace` is None where all waiters of the model go at its own pace."""

    __slots__ = ("pace", "tickets")

    def __init__(self, rng: random.Random, pace: Pace | None) -> None:
        self.pace = pace
        self.tickets = Tickets(rng)
