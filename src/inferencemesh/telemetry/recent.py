"""How many requests per second ended and were refused of late: one small list of counts per second.

For the live state, where a person wants the rate of the last seconds and no Prometheus is at hand.
"""

from __future__ import annotations

from collections.abc import Mapping

from inferencemesh.core.events import Event, RequestEnded, RequestRefused
from inferencemesh.core.outcome import OK, Kind, Outcome

REFUSED = "refused"
NAMES = (*(str(kind) for kind in Kind), REFUSED)
_INDEX = {name: index for index, name in enumerate(NAMES)}


class RecentRates:
    """A subscriber of the hub. `window_s` whole seconds are averaged, the current one left out."""

    name = "rates"

    __slots__ = ("_ring", "_seconds", "window_s")

    def __init__(self, window_s: int = 10) -> None:
        self.window_s = window_s
        # One more than the window: the second that is still being counted.
        self._ring = [[0] * len(NAMES) for _ in range(window_s + 1)]
        self._seconds = [-1] * (window_s + 1)

    def __call__(self, event: Event) -> None:
        """Count one ended or refused request at its own second."""
        if isinstance(event, RequestEnded):
            kind = Kind.COMPLETED if event.cause == OK else Outcome(event.phase, event.cause).kind
            self._add(int(event.at), _INDEX[kind])
        elif isinstance(event, RequestRefused):
            self._add(int(event.at), _INDEX[REFUSED])

    def rates(self, at: float) -> Mapping[str, float]:
        """Per second over the last whole seconds before `at` (Unix seconds), by name."""
        last = int(at) - 1
        first = last - self.window_s + 1
        sums = [0] * len(NAMES)
        for second, counts in zip(self._seconds, self._ring, strict=True):
            if first <= second <= last:
                sums = [total + count for total, count in zip(sums, counts, strict=True)]
        return {name: total / self.window_s for name, total in zip(NAMES, sums, strict=True)}

    def _add(self, second: int, index: int) -> None:
        place = second % len(self._ring)
        if self._seconds[place] != second:
            if self._seconds[place] > second:
                return  # a late event, or the wall clock was set back: its second is gone
            self._seconds[place] = second
            self._ring[place] = [0] * len(NAMES)
        self._ring[place][index] += 1
