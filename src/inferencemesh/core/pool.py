"""A pool: backends connected by the models they share, and the one fair line over its tenants (contract D3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferencemesh.core.fairqueue import FairQueue
from inferencemesh.core.flow import Flow
from inferencemesh.core.model import ModelSpec
from inferencemesh.core.request import Request
from inferencemesh.core.slots import Backend


class Collecting:
    """A wide waiter for which one backend is kept until its width fits there (contract A13)."""

    __slots__ = ("backend", "charged", "flow", "key", "request", "since")

    def __init__(
        self, request: Request, flow: Flow, backend: Backend, charged: float, key: int, now: float
    ) -> None:
        self.request = request
        self.flow = flow
        self.backend = backend
        self.charged = charged  # taken when it won its turn; given back if it does not come to a grant
        self.key = key  # its virtual start
        self.since = now


class Pool:
    """The fair line of connected backends and the wide waiters pulled out of it."""

    __slots__ = ("backends", "collecting", "dirty", "queue", "resting")

    def __init__(self, backends: Sequence[Backend], queue: FairQueue) -> None:
        self.backends = tuple(backends)
        self.queue = queue
        self.collecting: dict[Request, Collecting] = {}
        self.resting: dict[Request, None] = {}  # sent back as “full” again: not tried before their alarm
        self.dirty = False  # something may have become grantable


def group(backends: Iterable[str], models: Iterable[ModelSpec], *, together: bool) -> list[list[str]]:
    """Return the connected components of `backends` under `models`, in order of first mention.

    `together` puts all into one: a bound over all backends makes their tenants compete for the same slots.
    """
    names = list(backends)
    if together:
        return [names] if names else []
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for model in models:
        first = root(model.backends[0])
        for other in model.backends[1:]:
            parent[root(other)] = first
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(root(name), []).append(name)
    return list(parts.values())
