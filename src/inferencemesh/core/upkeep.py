"""Care for backends: what follows when one changes, by its answers, by operators, or by time (contract B6).

A breaker never opens when that would leave a model without a usable backend whose breaker is closed, and closes
again when the others have gone.
"""

from __future__ import annotations

from inferencemesh.core.breaker import BreakerState
from inferencemesh.core.dispatch import Dispatch
from inferencemesh.core.request import Lease
from inferencemesh.core.slots import Backend
from inferencemesh.core.state import State


class Upkeep:
    """The changes of backends; each marks its pool, and the caller runs the dispatch."""

    __slots__ = ("_dispatch", "_state")

    def __init__(self, state: State, dispatch: Dispatch) -> None:
        self._state = state
        self._dispatch = dispatch

    def changed(self, backend: Backend, now: float) -> None:
        """After any change of what `backend` can take."""
        backend.refresh()
        self._state.schedule(backend)
        self._dispatch.recheck(backend, now)
        self._dispatch.mark(self._state.pool_of[backend])
        if self._state.groups:
            self._dispatch.mark_held_up()

    def presence_changed(self, backend: Backend, now: float) -> None:
        """A backend came, went or changed size: a model left without a closed breaker gets one back."""
        self.changed(backend, now)
        for model in self._state.models_of[backend]:
            others = model.route.backends
            if any(_is_closed(other) for other in others):
                continue
            for other in others:
                if other.present and other.breaker.state is not BreakerState.CLOSED:
                    other.breaker.close()
                    self.changed(other, now)

    def elapse(self, now: float) -> None:
        """Make the changes that time alone brings."""
        for backend in list(self._state.timed):
            if backend.elapse(now):
                self.changed(backend, now)

    def proved(self, lease: Lease, now: float) -> None:
        """`lease` got content."""
        if lease.backend.proved(lease):
            self.changed(lease.backend, now)

    def report(self, backend: Backend, ok: bool, now: float) -> None:
        """An attempt on `backend` has succeeded or failed."""
        breaker = backend.breaker
        before = breaker.state
        if breaker.record(ok, now):
            if self._is_spared(backend):
                breaker.close()  # never a model's last backend: what failed is counted anew
            else:
                breaker.open(now)
        if breaker.state is not before:
            self.changed(backend, now)

    def _is_spared(self, backend: Backend) -> bool:
        return any(
            not any(other is not backend and _is_closed(other) for other in model.route.backends)
            for model in self._state.models_of[backend]
        )


def _is_closed(backend: Backend) -> bool:
    return backend.usable and backend.breaker.state is BreakerState.CLOSED
