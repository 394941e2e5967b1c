"""What requests have cost so far: the mean, and a cap that all but one in a thousand stay below."""

from __future__ import annotations

from math import log2

RARE = 0.001  # the part of requests that may cost more than the cap
_PER_DOUBLING = 4  # buckets; the cap is at most a fifth above the cost that it stands for
_BUCKETS = 30 * _PER_DOUBLING
_WINDOW = 4096  # observations after which the older ones count half
_PRIOR_WEIGHT = 2.0  # observations that the prior counts as


class Costs:
    """A histogram of costs with buckets that grow by a fifth, in bounded memory and O(1) per observation.

    `least` is the smallest cost that is told apart (the unit's minimum charge), `prior` the mean that is
    believed while little is known.
    """

    __slots__ = ("_cap", "_counts", "_due", "_fresh", "_last_at", "_least", "_most", "_seen", "_sum")

    def __init__(self, least: float, prior: float) -> None:
        self._least = least
        self._counts: dict[int, int] = {}  # by bucket: most tenants have requests of a few lengths only
        self._seen = _PRIOR_WEIGHT
        self._sum = _PRIOR_WEIGHT * prior
        self._most = -1  # the highest bucket in use
        self._fresh = 0  # observations since the cap was computed
        self._last_at: float | None = None
        self._due = 2.0 * prior  # what the cap is to be
        self._cap = 2.0 * prior  # above that it only falls so fast

    @property
    def mean(self) -> float:
        """Mean cost of the recent past."""
        return self._sum / self._seen

    @property
    def cap(self) -> float:
        """The cost that all but one in a thousand stayed below, and at least twice the mean; on its way there from
        what it was.
        """  # noqa: D205
        return self._cap

    @property
    def known(self) -> bool:
        """Whether the mean says something."""
        return self._seen >= 20.0

    def since_last(self, now: float) -> float:
        """Return the seconds since it was asked last, 0 the first time: how long the cap has had to fall."""
        last_at = self._last_at
        self._last_at = now
        return 0.0 if last_at is None else now - last_at

    def add(self, cost: float, fall: float) -> None:
        """One more request has cost so much; the cap may fall by `fall` at most.

        Half of it is charged ahead. If that became less at once, a tenant with many requests under way would be given
        back the more of the last ones than the next are charged: it would fall behind virtual time, and whoever came
        then would stand behind it until that is made up for. So the charge falls slower than it is used.
        """
        least = self._least
        bucket = 0 if cost <= least else min(_BUCKETS - 1, int(log2(cost / least) * _PER_DOUBLING) + 1)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._seen += 1.0
        self._sum += cost
        self._fresh += 1
        if bucket > self._most:
            self._most = bucket
            self._renew()
        elif self._fresh >= 32:
            self._renew()
        self._cap = max(self._due, self._cap - fall)

    def _renew(self) -> None:
        self._fresh = 0
        counts = self._counts
        if self._seen > _WINDOW:
            self._counts = counts = {of: count // 2 for of, count in counts.items() if count > 1}
            seen = sum(counts.values()) + _PRIOR_WEIGHT
            self._sum *= seen / self._seen
            self._seen = seen
        allowed = RARE * self._seen
        above = 0
        bucket = self._most
        while bucket > 0:
            count = counts.get(bucket, 0)
            above += count
            if above > allowed:
                break
            if not count and bucket == self._most:
                self._most -= 1
            bucket -= 1
        edge = self._least * 2.0 ** (bucket / _PER_DOUBLING)
        self._due = max(edge, 2.0 * self._sum / self._seen)


class Mean:
    """The mean of the recent past, of anything; `prior` counts as a few observations."""

    __slots__ = ("_seen", "_sum")

    def __init__(self, prior: float) -> None:
        self._seen = _PRIOR_WEIGHT
        self._sum = _PRIOR_WEIGHT * prior

    @property
    def value(self) -> float:
        """The mean."""
        return self._sum / self._seen

    def add(self, value: float) -> None:
        """One more observation."""
        self._seen += 1.0
        self._sum += value
        if self._seen > _WINDOW:
            self._seen *= 0.5
            self._sum *= 0.5
