"""The engine's own admission: slots, and a bounded line of requests that wait for them, in order of arrival.

Pure and synchronous. It counts what really runs, so that a gateway's books can be held against it.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

Verdict = Literal["start", "wait", "full"]
_Job = TypeVar("_Job")


class Slots(Generic[_Job]):
    """`slots` units of concurrent work, and `queue` requests that may wait for them."""

    def __init__(self, slots: int, queue: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        if queue < 0:
            raise ValueError(f"queue must not be negative, not {queue}")
        self.slots = slots
        self.queue = queue
        self.running = 0  # slots in use
        self.peak_running = 0
        self.peak_waiting = 0
        self._line: dict[_Job, int] = {}  # in order of arrival; a dict, so that leaving is O(1)

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        return len(self._line)

    def offer(self, job: _Job, width: int) -> Verdict:
        """A new request of `width` slots (at most `slots`): it starts, waits, or is turned away."""
        if not self._line and self.running + width <= self.slots:
            self._take(width)
            return "start"
        if len(self._line) >= self.queue:
            return "full"
        self._line[job] = width
        self.peak_waiting = max(self.peak_waiting, len(self._line))
        return "wait"

    def leave(self, job: _Job) -> list[_Job]:
        """A waiting request goes away. Returns those that start now: it may have been a wide head."""
        self._line.pop(job, None)
        return self._grant()

    def release(self, width: int) -> list[_Job]:
        """Slots come back. Returns the requests that start now."""
        self.running -= width
        return self._grant()

    def clear(self) -> None:
        """As new."""
        self._line.clear()
        self.running = self.peak_running = self.peak_waiting = 0

    def _take(self, width: int) -> None:
        self.running += width
        self.peak_running = max(self.peak_running, self.running)

    def _grant(self) -> list[_Job]:
        started: list[_Job] = []
        while self._line:
            job, width = next(iter(self._line.items()))
            if self.running + width > self.slots:
                break
            del self._line[job]
            self._take(width)
            started.append(job)
        return started
