"""The budget of retries over all requests (contract A9): a retry storm is bounded by what was asked for.

Within the last `window_s` there may be `budget` retries per request, but `burst` at least, so that a quiet
gateway may still retry. The window moves in tenths.
"""

from __future__ import annotations

from collections import deque

from inferencemesh.core.model import RetrySpec

_PARTS = 10


class RetryBudget:
    """Counts requests and retries of the recent past."""

    __slots__ = ("_parts", "_requests", "_retries", "spec")

    def __init__(self, spec: RetrySpec) -> None:
        self.spec = spec
        self._parts: deque[list[int]] = deque()  # [part number, requests, retries]
        self._requests = 0
        self._retries = 0

    def _part(self, now: float) -> list[int]:
        part = int(now * _PARTS / self.spec.window_s)
        parts = self._parts
        if parts and parts[-1][0] == part:
            return parts[-1]
        while parts and parts[0][0] <= part - _PARTS:
            _, requests, retries = parts.popleft()
            self._requests -= requests
            self._retries -= retries
        parts.append([part, 0, 0])
        return parts[-1]

    def asked(self, now: float) -> None:
        """A request was accepted."""
        self._part(now)[1] += 1
        self._requests += 1

    def take(self, now: float) -> bool:
        """Return whether one more retry is within the budget, and book it."""
        spec = self.spec
        part = self._part(now)
        if spec.budget <= 0 or self._retries + 1 > max(spec.burst, spec.budget * self._requests):
            return False
        part[2] += 1
        self._retries += 1
        return True
