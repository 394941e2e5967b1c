"""Strict classes with a floor (contract D6): the most urgent class that can be served goes first, but not always.

A class that waits and could have been served is passed over at most `1 / floor - 1` times in a row, and then has a
turn; where several are due at once, one after the other. Within a class the fair order over tenants holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import floor as whole

from inferencemesh.core.flow import Entry, Need


class Bands:
    """Whose turn it is among the bands; `floor` is the part of grants that each waiting band is sure of."""

    __slots__ = ("_offered", "_passed", "_patience")

    def __init__(self, floor: float) -> None:
        self._patience = max(0, whole(1.0 / floor + 1e-9) - 1)
        self._passed: dict[int, int] = {}  # grants to others since each was last served
        self._offered: dict[int, Entry] = {}  # by band, what the present decision could serve

    def best(self, needs: Iterable[Need]) -> Entry:
        """Return the first entry of the band whose turn it is, and take the other bands' needs out of this decision.

        At least one need can be served.
        """
        offered = self._offered
        offered.clear()
        for need in needs:
            if need.backend is None or not need.eligible:
                continue
            entry = need.top()
            band = band_of(need)
            if entry is not None and (band not in offered or entry < offered[band]):
                offered[band] = entry
        turn = min(offered)
        late = [band for band in offered if self._passed.get(band, 0) >= self._patience and band != turn]
        if late:
            turn = max(late, key=lambda band: (self._passed.get(band, 0), -band))
        for need in needs:
            if band_of(need) != turn:
                need.backend = None
        return offered[turn]

    def took(self, need: Need) -> None:
        """A waiter with this need was served: the others that could have been were passed over."""
        turn = band_of(need)
        for band in self._offered:
            if band != turn:
                self._passed[band] = self._passed.get(band, 0) + 1
        self._passed[turn] = 0


def band_of(need: Need) -> int:
    """Return the band of the requests with this need."""
    return need.group.band if need.group is not None else 0
