"""The interface of an engine adapter: only what differs between model servers."""

from __future__ import annotations

from typing import Protocol

from inferencemesh.wire.tracker import InBandError


class Engine(Protocol):
    """One kind of model server."""

    name: str
    health_path: str
    # Seconds between the peer's own close and the moment its generation has certainly stopped (B5, `grace: auto`).
    drain_floor_s: float
    # Where the engine tells its slots (`slots: auto`); None if it does not.
    slots_path: str | None

    def slots(self, body: bytes) -> int:
        """The slots in the answer of `slots_path`. Raises ValueError or KeyError if it holds none."""
        ...

    def healthy(self, status: int) -> bool:
        """Whether this answer to the health path means that the server can take work."""
        ...

    def is_full(self, status: int, error: InBandError | None) -> bool:
        """Whether an answer, or an in-band error of a 200, is the engine's own admission saying “full” (B6)."""
        ...
