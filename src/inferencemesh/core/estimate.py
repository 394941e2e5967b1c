"""How fast a model's line moves, how long a wait will be, and when a refused caller should come back.

Service time T = busy slot-seconds / completions over the recent past (half-life 30 s); streams still running
count, so a run of short finishes does not fool it. The prior of 10 s holds until 20 completions are known.
The line's speed is measured only while somebody waits: a quiet model's arrival rate says nothing about its
speed.

`Retry-After` by tickets: every refused caller of a tenant is given its own next instant in a virtual line
that moves at the tenant's share of the speed, so callers do not return together (contract A10).
"""

from __future__ import annotations

import random
from math import exp, log, sqrt

HALF_LIFE_S = 30.0
PRIOR_S = 10.0
PRIOR_WEIGHT = 2.0  # completions that the prior counts as
KNOWN = 20  # completions before estimates are believed
ENOUGH = 5.0  # grants (decayed) after which the measured pace alone counts
OPTIMISM = 1.28  # standard deviations given away before a request is called hopeless
RETRY_MAX_S = 60.0

_DECAY = log(2) / HALF_LIFE_S
_STEADY = (
    2.0  # completions' worth of weight that the long-run mean keeps, so that an idle hour is no surprise
)


class Pace:
    """Grants per second to the waiters of a model, or of one class of it, measured while there are any."""

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
        measured = self.measured
        if measured is not None:
            return measured
        if self._seconds * otherwise > self._granted + 1.0:
            return (self._granted + 1.0) / self._seconds
        return otherwise

    @property
    def measured(self) -> float | None:
        """The grants per second as of the last change; None while too few were seen."""
        if self._granted >= ENOUGH and self._seconds > 0.0:
            return self._granted / self._seconds
        return None

    def _advance(self, now: float) -> None:
        elapsed = now - self._at
        self._at = now
        if self.waiting and elapsed > 0:
            kept = exp(-elapsed * _DECAY)
            self._granted *= kept
            self._seconds = self._seconds * kept + (1.0 - kept) / _DECAY


class Speed:
    """The measured speed of one model; `pace` is that of its waiters. Every call advances it to `now`."""

    __slots__ = (
        "_at",
        "_busy",
        "_done",
        "_long_busy",
        "_long_done",
        "_slots",
        "completions",
        "pace",
    )

    def __init__(self, pace: Pace | None = None) -> None:
        self.completions = 0
        self.pace = pace if pace is not None else Pace()  # of its waiters
        self._at: float | None = None
        self._slots = 0  # busy now
        self._busy = 0.0  # slot-seconds, decayed
        self._done = 0.0  # completions, decayed
        self._long_busy = 0.0  # the same over about the last thousand completions
        self._long_done = 0.0

    def _advance(self, now: float) -> None:
        if self._at is None:
            self._at = now
            return
        elapsed = now - self._at
        if elapsed <= 0:
            return
        self._at = now
        kept = exp(-elapsed * _DECAY)
        added = (1.0 - kept) / _DECAY
        self._done *= kept
        self._busy = self._busy * kept + self._slots * added
        self._long_busy += self._slots * elapsed

    def busy(self, slots: int, now: float) -> None:
        """`slots` more (or, negative, fewer) are working for this model."""
        if now != self._at:
            self._advance(now)
        self._slots += slots

    def completed(self, now: float) -> None:
        """One request that had slots has come to its end."""
        if now != self._at:
            self._advance(now)
        self.completions += 1
        self._done += 1.0
        self._long_done += 1.0
        if self._long_done > 1000.0:
            self._long_done *= 0.5
            self._long_busy *= 0.5

    @property
    def known(self) -> bool:
        """Whether enough has completed to believe the estimates (contract A8)."""
        return self.completions >= KNOWN

    def service_s(self) -> float:
        """Mean slot-seconds of one request. The prior counts as a few completions until enough is known."""
        if self.completions < KNOWN or self._long_done <= 0:
            known = self._long_busy + PRIOR_WEIGHT * PRIOR_S
            seen = self._long_done + PRIOR_WEIGHT
            # Streams that still run add to what was busy and not to what has ended: no more than they have lasted.
            return min(known / seen, max(PRIOR_S, known / (seen + self._slots)))
        mean = self._long_busy / self._long_done
        return max(1e-3, (self._busy + _STEADY * mean) / (self._done + _STEADY))

    def per_s(self, slots: int) -> float:
        """Grants per second out of the line: as measured if it is, else what `slots` can do."""
        measured = self.pace.measured
        return measured if measured is not None else max(slots, 1) / self.service_s()

    def at_best_per_s(self, slots: int) -> float:
        """The more hopeful of what was measured and what `slots` can do."""
        return max(self.per_s(slots), max(slots, 1) / self.service_s())


def is_hopeless(wait_s: float, ahead: int, left_s: float) -> bool:
    """Whether even an optimistic reading of `wait_s`, as the `ahead`-th of its tenant, exceeds what is left (A8)."""
    return wait_s * (1.0 - OPTIMISM / sqrt(ahead)) > left_s


class Tickets:
    """When the refused of one model should come back: one virtual line per tenant, bounded memory."""

    __slots__ = ("_limit", "_next", "_rng")

    def __init__(self, rng: random.Random, limit: int = 4096) -> None:
        self._rng = rng
        self._limit = limit
        # The last ticket drawn, and the time between two tickets at the speed that was known then.
        self._next: dict[str, tuple[float, float]] = {}

    def draw(self, tenant: str, now: float, per_s: float, backlog: float, width: int = 1) -> float:
        """Return seconds from `now`, within (0, 60], spread by up to half a second.

        `per_s` is the tenant's share of the line's speed, `backlog` how many waiters of its own must have
        gone before it is worth coming back. One of more than one slot takes as many places in the line.
        """
        step = 1.0 / per_s
        at = now + max(0.0, backlog) * step
        last = self._next.get(tenant)
        if last is None:
            if len(self._next) >= self._limit:
                self._forget(now)
        else:
            # Tickets that are still out are places in a line that moves at the speed that is known *now*.
            before = now + (last[0] - now) * step / last[1]
            if before > at:
                at = before
        at += step * width
        wait_s = at - now
        if wait_s > RETRY_MAX_S:
            return self._rng.uniform(RETRY_MAX_S / 2, RETRY_MAX_S)
        self._next[tenant] = (at, step)
        return min(RETRY_MAX_S, wait_s + self._rng.random() * 0.5)

    def spread(self, least_s: float, most_s: float) -> float:
        """Return a time between the two at random, for refusals that the line's speed says nothing about."""
        return self._rng.uniform(least_s, most_s)

    def _forget(self, now: float) -> None:
        """Drop the tickets that have been used; if all are still out, drop the older half."""
        kept = {tenant: last for tenant, last in self._next.items() if last[0] > now}
        if len(kept) >= self._limit:
            kept = dict(list(kept.items())[self._limit // 2 :])
        self._next = kept
