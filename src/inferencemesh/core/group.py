"""One class of requests over all tenants: its own limit, and its rank where classes are strict (contract D6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferencemesh.core.model import ClassSpec

if TYPE_CHECKING:
    from inferencemesh.core.request import Request


class Group:
    """The state of one class. `held` counts slots: running, draining, or set aside for a collecting waiter."""

    __slots__ = ("band", "held", "max_running", "name", "waits_for")

    def __init__(self, spec: ClassSpec, band: int) -> None:
        self.name = spec.name
        self.max_running = spec.max_running
        self.band = band  # 0 comes first; the same for all unless classes are strict
        self.held = 0
        self.waits_for: Request | None = (
            None  # its turn had come, and it is too wide for what the limit leaves
        )

    def __repr__(self) -> str:
        return f"<Group {self.name} held={self.held}>"

    @property
    def admits(self) -> bool:
        """Whether any of its waiters may have its turn. While a wide one waits for room, none overtakes it."""
        return self.max_running is None or (self.held < self.max_running and not self._is_closed)

    @property
    def _is_closed(self) -> bool:
        """Whether a wide one waits for room that could be served there. One that could not holds up nobody else."""
        first = self.waits_for
        lane = first._lane if first is not None else None
        if first is None or lane is None or lane.flow.tenant.parked:
            return False
        backends = lane.need.model.route.backends
        return any(backend.usable and backend.capacity >= first.width for backend in backends)

    def room_for(self, width: int) -> bool:
        """Whether its limit leaves `width` slots."""
        return self.max_running is None or self.held + width <= self.max_running

    def look(self) -> None:
        """Slots have come back: whoever waits for room is let into the order of service again once there is some."""
        first = self.waits_for
        if first is not None and self.room_for(first.width):
            self.waits_for = None
