"""One timer wheel for all answers: a heap of due times over a clock that can be stopped.

Instants here are virtual seconds: those of the event loop, less the time spent paused. One handle of the
loop serves every stream, so an event costs a push and a pop of the heap, and no task and no timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush

# uvloop rounds its timers to milliseconds and may come half of one early; asking again would only spin.
SLACK_S = 0.0005
_COMPACT_FROM = 512


class Timer:
    """One call that is due. `cancel` may come at any time, also after it was made."""

    __slots__ = ("_clock", "call")

    def __init__(self, clock: Clock, call: Callable[[], None]) -> None:
        self._clock = clock
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do not call."""
        if self.call is not None:
            self.call = None
            self._clock.note_cancelled()


class Clock:
    """Virtual time and what is due in it. Stops with `pause`, goes on with `resume`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Timer]] = []
        self._pushed = 0
        self._cancelled = 0
        self._lost_s = 0.0  # time spent paused so far
        self._paused_at: float | None = None  # virtual
        self._handle: asyncio.TimerHandle | None = None
        self._armed_at = 0.0
        self._firing = False

    @property
    def paused(self) -> bool:
        """Whether time stands still."""
        return self._paused_at is not None

    def now(self) -> float:
        """The virtual instant."""
        return self._loop.time() - self._lost_s if self._paused_at is None else self._paused_at

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """Call once virtual time has reached `when`; never from within this method."""
        timer = Timer(self, call)
        self._pushed += 1
        heappush(self._heap, (when, self._pushed, timer))
        if not self._firing and (self._handle is None or when < self._armed_at):
            self._arm()
        return timer

    def pause(self) -> None:
        """Stop the time. Idempotent."""
        if self._paused_at is None:
            self._paused_at = self.now()
            self._disarm()

    def resume(self) -> None:
        """Let the time go on from where it stopped: everything due moves by the pause. Idempotent."""
        if self._paused_at is not None:
            self._lost_s = self._loop.time() - self._paused_at
            self._paused_at = None
            self._arm()

    def clear(self) -> None:
        """Forget everything that is due."""
        self._disarm()
        for _, _, timer in self._heap:
            timer.call = None
        self._heap.clear()
        self._cancelled = 0

    def note_cancelled(self) -> None:
        """A timer will not be needed: drop the dead ones once they are the larger part."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_FROM and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
            self._cancelled = 0

    def _arm(self) -> None:
        self._disarm()
        if self._heap and self._paused_at is None:
            self._armed_at = self._heap[0][0]
            self._handle = self._loop.call_at(self._armed_at + self._lost_s, self._fire)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._firing = True
        due = self.now() + SLACK_S
        try:
            while self._heap and self._heap[0][0] <= due and self._paused_at is None:
                timer = heappop(self._heap)[2]
                call, timer.call = timer.call, None
                if call is None:
                    self._cancelled = max(0, self._cancelled - 1)
                else:
                    call()
        finally:
            self._firing = False
            self._arm()
