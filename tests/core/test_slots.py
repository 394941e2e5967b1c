"""One backend's ledger and the choice among several."""

from __future__ import annotations

from typing import cast

import pytest

from inferencemesh.core.flow import Flow
from inferencemesh.core.model import BackendSpec, BreakerSpec
from inferencemesh.core.request import InvariantError, Lease, LeaseState, Request
from inferencemesh.core.routing import Route
from inferencemesh.core.slots import Backend


def make(name: str = "b", slots: int = 4, weight: float = 1.0) -> Backend:
    return Backend(BackendSpec(name, slots, weight), BreakerSpec())


def take(backend: Backend, width: int = 1, now: float = 0.0) -> Lease:
    request = Request("r", "t", "m", width, arrived_at=now, deadline_at=now + 60)
    lease = Lease(request, backend, width, now, cast(Flow, None))
    backend.take(lease)
    return lease


def test_held_is_running_plus_draining_and_never_above_capacity() -> None:
    backend = make()
    first, second = take(backend, 2), take(backend)
    assert (backend.held, backend.open) == (3, 1)
    backend.drain(first, 5.0)
    assert (backend.running, backend.draining, backend.held, backend.open) == (1, 2, 3, 1)
    with pytest.raises(InvariantError):
        take(backend, 2)
    backend.free(first)
    backend.free(second)
    assert (backend.held, backend.open) == (0, 4)
    for lease in (first, second):
        assert lease.state is LeaseState.FREED
        with pytest.raises(InvariantError):
            backend.free(lease)


def test_a_lease_frees_the_object_it_captured() -> None:
    old, new = make(), make()
    lease = take(old)
    assert lease.backend is old
    old.free(lease)
    assert new.open == 4


def test_believed_capacity_moves_by_one_and_never_above_the_configured() -> None:
    backend = make(slots=3)
    leases = [take(backend) for _ in range(3)]
    backend.free(leases[0])
    backend.said_full(leases[0], 1.0, 0.0)
    assert (backend.proven, backend.capacity, backend.open) == (2, 2, 0)
    assert backend.next_change_at() == 1.25
    assert not backend.elapse(1.2)
    assert backend.elapse(1.25)
    assert (backend.capacity, backend.open) == (3, 1)
    probe = take(backend, now=1.3)
    assert backend.proved(probe)
    assert not backend.proved(probe)  # once
    assert backend.proven is None
    backend.resize(2)
    assert (backend.capacity, backend.open) == (2, 0)


def test_a_draining_attempt_is_not_part_of_what_is_believed() -> None:
    backend = make(slots=2)
    lease, other = take(backend), take(backend)
    backend.drain(lease, 0.5)
    backend.said_full(lease, 1.0, 0.0)
    assert backend.proven == 1
    backend.free(lease)
    assert backend.open == 0
    backend.free(other)
    assert backend.open == 1


def test_a_resize_down_to_what_is_proven_ends_the_doubt() -> None:
    backend = make(slots=4)
    leases = [take(backend) for _ in range(4)]
    backend.free(leases[0])
    backend.said_full(leases[0], 0.0, 3.0)
    backend.keep_quiet(3.0)
    backend.resize(3)
    assert backend.proven is None
    assert backend.next_change_at() == 3.0  # it asked to be left alone until then
    backend.free(leases[1])
    assert backend.open == 0
    backend.elapse(3.0)
    assert backend.open == 1


def test_least_busy_by_our_ledger_relative_to_capacity_and_weight() -> None:
    small, large = make("small", 2), make("large", 8)
    route = Route([small, large], "least_busy")
    order = []
    for _ in range(10):
        backend = route.pick(1)
        assert backend is not None
        take(backend)
        route.chosen(backend)
        order.append(backend.name)
    assert order.count("small") == 2
    assert "small" in order[:2]
    assert order[-5:].count("small") <= 1
    assert route.pick(1) is None
    heavy, light = make("heavy", 10, weight=3.0), make("light", 10)
    route = Route([heavy, light], "least_busy")
    for _ in range(8):
        backend = route.pick(1)
        assert backend is not None
        take(backend)
        route.chosen(backend)
    assert (heavy.held, light.held) == (6, 2)


@pytest.mark.parametrize("routing", ["least_busy", "round_robin"])
def test_ties_and_turns_rotate(routing: str) -> None:
    backends = [make(name) for name in "abc"]
    route = Route(backends, routing)
    order = []
    for _ in range(6):
        backend = route.pick(1)
        assert backend is not None
        route.chosen(backend)
        order.append(backend.name)  # freed at once: all equal again
    assert order == list("abcabc")


def test_width_reservation_and_avoidance() -> None:
    narrow, wide, other = make("narrow", 1), make("wide", 4), make("other", 4)
    route = Route([narrow, wide, other], "least_busy")
    assert route.widest == 4
    picked = route.pick(3)
    assert picked in (wide, other)
    wide.reserved_for = Request("w", "t", "m", 4, arrived_at=0, deadline_at=1)
    assert route.pick(3) is other
    assert route.collectable(4) is other
    assert route.pick(2, frozenset({"other"})) is None
    assert route.pick(1, frozenset({"other", "narrow"})) is None
    assert route.pick(2, frozenset({"other", "narrow", "wide"})) is other  # nothing else is usable
    wide.up = False
    wide.refresh()
    assert route.pick(1, frozenset({"other", "narrow"})) is not None
    other.cordoned = narrow.cordoned = True
    assert not route.is_present
    assert route.usable_slots == 0
