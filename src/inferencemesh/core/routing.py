"""Which backend a grant goes to, by our own ledger (contract A1): least busy, or round robin.

`least_busy` takes the backend with the smallest held / (capacity x weight); ties rotate, so that equal
backends share. Backends are few, so both are one pass over them.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferencemesh.core.breaker import BreakerState
from inferencemesh.core.request import NO_BACKENDS
from inferencemesh.core.slots import Backend


class Route:
    """The backends of one model and the order among them."""

    __slots__ = ("_next", "backends", "round_robin")

    def __init__(self, backends: Sequence[Backend], routing: str) -> None:
        self.backends = tuple(backends)
        self.round_robin = routing == "round_robin"
        self._next = 0  # where a tie, or the turn, starts

    def pick(self, width: int, avoid: frozenset[str] = NO_BACKENDS) -> Backend | None:
        """Return the backend that can take `width` slots now, None if there is none.

        Backends in `avoid` are passed over unless nothing else of the model is usable. Reserved backends
        belong to the request that collects there. Nothing changes: see `chosen`.
        """
        backends = self.backends
        count = len(backends)
        if count == 1:
            only = backends[0]
            return only if only.open >= width and only.reserved_for is None else None
        if avoid:
            avoid = self.avoidable(avoid)
        best: Backend | None = None
        best_load = 0.0
        index = self._next
        for _ in range(count):
            if index >= count:
                index = 0
            backend = backends[index]
            index += 1
            if backend.open < width or backend.reserved_for is not None or backend.name in avoid:
                continue
            if self.round_robin:
                return backend
            load = (backend.running + backend.draining) / (backend.capacity * backend.weight)
            if best is None or load < best_load:
                best = backend
                best_load = load
        return best

    def chosen(self, backend: Backend) -> None:
        """A grant went to `backend`: the next tie, or turn, starts behind it."""
        if len(self.backends) > 1:
            self._next = self.backends.index(backend) + 1

    def collectable(self, width: int, avoid: frozenset[str] = NO_BACKENDS) -> Backend | None:
        """Return the backend on which a request of `width` should collect slots: with a free one now, most free.

        Only where the breaker is closed, and where `width` fits once others have finished.
        """
        if avoid:
            avoid = self.avoidable(avoid)
        best: Backend | None = None
        for backend in self.backends:
            if (
                backend.open > 0
                and backend.reserved_for is None
                and backend.capacity >= width
                and backend.breaker.state is BreakerState.CLOSED
                and backend.name not in avoid
                and (best is None or backend.open > best.open)
            ):
                best = backend
        return best

    def avoidable(self, avoid: frozenset[str]) -> frozenset[str]:
        """Return `avoid`, or nothing where every usable backend is in it."""
        for backend in self.backends:
            if backend.usable and backend.name not in avoid:
                return avoid
        return NO_BACKENDS

    @property
    def widest(self) -> int:
        """The largest number of configured slots on one backend."""
        return max(backend.slots for backend in self.backends)

    @property
    def usable_slots(self) -> int:
        """Configured slots of the backends that work may be sent to."""
        return sum(backend.slots for backend in self.backends if backend.usable)

    @property
    def has_open(self) -> bool:
        """Whether any slot is free for a grant, reserved ones included."""
        for backend in self.backends:  # noqa: SIM110 - asked for at every arrival at a busy model
            if backend.open:
                return True
        return False

    @property
    def is_present(self) -> bool:
        """Whether any backend is up and not cordoned."""
        for backend in self.backends:  # noqa: SIM110 - asked for at every arrival
            if backend.up and not backend.cordoned:
                return True
        return False
