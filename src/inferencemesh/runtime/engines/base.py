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

    def confirm_path(self, attempt_id: str) -> str | None:
        """Where the engine tells whether it still works on an attempt (B5, `confirm`); None if it does not."""
        ...

    def stopped(self, status: int, body: bytes, attempt_id: str, *, closed: bool) -> bool | None:
        """Whether the answer of `confirm_path` says that the attempt has stopped, or goes on; None: it says neither.

        `closed`: the engine has closed its side of the attempt's connection, so nothing of it is still on its way.
        Raises ValueError, KeyError or TypeError for an answer that cannot be read.
        """
        ...

    def healthy(self, status: int) -> bool:
        """Whether this answer to the health path means that the server can take work."""
        ...

    def is_full(self, status: int, error: InBandError | None) -> bool:
        """Whether an answer, or an in-band error of a 200, is the engine's own admission saying “full” (B6)."""
        ...
