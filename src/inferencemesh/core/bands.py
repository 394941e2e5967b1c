"""Strict classes with a floor (contract D6): the most urgent class that can be served goes first, but not always.

A class that waits and could have been served earns `floor` of a turn with each grant, and has its turn when it has
earned one; where several have at once, one after the other. Within a class the fair order over tenants holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from inferencemesh.core.flow import Entry, Need


class Bands:
    """Whose turn it is among the bands; `floor` is the part of grants that each waiting band is sure of."""

    __slots__ = ("_earned", "_floor", "_offered")

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._earned: dict[int, float] = {}  # turns, by band
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
        enough = 1.0 - self._floor - 1e-9  # with this grant it is a whole turn
        late = [band for band in offered if self._earned.get(band, 0.0) >= enough and band != turn]
        if late:
            turn = max(late, key=lambda band: (self._earned.get(band, 0.0), -band))
        for need in needs:
            if band_of(need) != turn:
                need.backend = None
        return offered[turn]

    def took(self, need: Need) -> None:
        """A waiter with this need was served: of those that could have been, each has earned its part of a turn."""
        turn = band_of(need)
        for band in self._offered:
            earned = self._earned.get(band, 0.0) + self._floor
            self._earned[band] = max(0.0, earned - 1.0) if band == turn else earned


def band_of(need: Need) -> int:
    """Return the band of the requests with this need."""
    return need.group.band if need.group is not None else 0
