"""When waiters run out of time: one heap for all lines, entries of those who left are dropped lazily.

A waiter's expiry is the earlier of its queue timeout and its deadline; both are noticed at once, not at the
next pop of its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from inferencemesh.core.request import Request, RequestState

_NEVER: Final = float("inf")
_Entry = tuple[float, int, Request]


class Expiries:
    """The waiters by expiry. O(log n) to add, O(1) amortised to leave; memory follows the number of waiters."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[_Entry] = []

    def add(self, request: Request, waiting: int) -> None:
        """Enter `request` under its `_expires_at`; `waiting` is how many waiters there are in all."""
        heappush(self._heap, (request._expires_at, request._seq, request))
        self.compact(waiting)

    def compact(self, waiting: int) -> None:
        """Drop the entries of those who left, once they outnumber the `waiting`."""
        heap = self._heap
        if len(heap) > 2 * waiting + 64:
            heap[:] = [entry for entry in heap if _live(entry)]
            heapify(heap)

    def next_at(self) -> float:
        """When the first waiter expires; infinity without waiters."""
        heap = self._heap
        while heap:
            if _live(heap[0]):
                return heap[0][0]
            heappop(heap)
        return _NEVER

    def due(self, now: float) -> Iterator[Request]:
        """Take out, one by one, the waiters whose time has come. Each must have left the line before the next."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if _live(entry):
                yield entry[2]

    def __len__(self) -> int:
        return len(self._heap)


def _live(entry: _Entry) -> bool:
    request = entry[2]
    return request.state is RequestState.WAITING and request._expires_at == entry[0]
