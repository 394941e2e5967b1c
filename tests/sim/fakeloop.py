"""An event loop's time and timers, moved by the test."""

from __future__ import annotations

from collections.abc import Callable


class Handle:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """A loop of which the test moves the time."""

    def __init__(self) -> None:
        self.instant = 100.0
        self.handles: list[Handle] = []

    def time(self) -> float:
        return self.instant

    def call_at(self, at: float, call: Callable[[], None]) -> Handle:
        handle = Handle(at, call)
        self.handles.append(handle)
        return handle

    def armed(self) -> list[Handle]:
        return [handle for handle in self.handles if handle.call is not None]

    def run_to(self, instant: float) -> None:
        while due := [handle for handle in self.armed() if handle.at <= instant]:
            first = min(due, key=lambda handle: handle.at)
            self.instant = max(self.instant, first.at)
            call, first.call = first.call, None
            assert call is not None
            call()
        self.instant = instant
