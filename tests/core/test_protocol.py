"""The life of a lease and of a request: settled once, freed once, by the object captured (B1, B2, B3)."""

from __future__ import annotations

import pytest

from inferencemesh.core.admission import InvariantError
from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.request import LeaseState
from tests.core.driver import DONE, GONE, Mesh, one


def test_a_request_is_settled_exactly_once() -> None:
    mesh = Mesh(*one(1))
    request = mesh.offer()
    with pytest.raises(InvariantError):
        mesh.admission.settle(request, DONE, 0)  # its lease still runs
    mesh.finish(request)
    assert request.outcome is DONE
    with pytest.raises(InvariantError):
        mesh.admission.settle(request, GONE, 0)
    with pytest.raises(InvariantError):
        mesh.admission.offer(request, 0)
    with pytest.raises(InvariantError):
        mesh.admission.cancel(request, GONE, 0)
    mesh.is_free()


def test_a_waiter_is_cancelled_and_not_settled() -> None:
    mesh = Mesh(*one(1))
    mesh.offer()
    waiter = mesh.offer()
    with pytest.raises(InvariantError):
        mesh.admission.settle(waiter, DONE, 0)
    mesh.cancel(waiter)
    assert waiter.outcome is GONE
    with pytest.raises(InvariantError):
        mesh.admission.cancel(waiter, GONE, 0)


def test_release_drain_and_confirm_are_idempotent() -> None:
    mesh = Mesh(*one(2))
    request = mesh.offer()
    lease = mesh.running[request]
    with pytest.raises(InvariantError):
        mesh.admission.confirm(lease, "too early", 0)
    mesh.abort(request)
    assert lease in mesh.admission._state.backends["b"].drains
    assert lease.draining_since == 0
    assert mesh.apply(mesh.admission.drain(lease, 1)) == []
    assert mesh.backend().draining == 1
    mesh.confirm(lease)
    for _ in range(2):
        mesh.apply(mesh.admission.confirm(lease, "again", 2))
        mesh.apply(mesh.admission.release(lease, 2))
        mesh.apply(mesh.admission.drain(lease, 2))
    assert lease.state is LeaseState.FREED
    mesh.is_free()


def test_draining_is_counted_and_aged() -> None:
    mesh = Mesh(*one(2))
    first, second = mesh.offer(), mesh.offer()
    waiting = mesh.offer()
    lease = mesh.abort(first)
    mesh.now = 3.0
    mesh.abort(second)
    view = mesh.backend()
    assert (view.running, view.draining, view.free) == (0, 2, 0)
    assert view.draining_oldest_s == 3.0
    assert waiting in mesh.waiting
    mesh.confirm(lease)
    assert waiting in mesh.running


def test_a_shrink_leaves_an_excess_that_only_falls() -> None:
    mesh = Mesh(*one(4))
    running = [mesh.offer() for _ in range(4)]
    waiting = [mesh.offer() for _ in range(3)]
    mesh.apply(mesh.admission.resize("b", 2, 0))
    assert (mesh.backend().capacity, mesh.backend().running, mesh.backend().free) == (2, 4, 0)
    mesh.finish(running[0])
    mesh.finish(running[1])
    assert all(request in mesh.waiting for request in waiting)
    mesh.finish(running[2])
    assert waiting[0] in mesh.running
    mesh.apply(mesh.admission.resize("b", 9, 0))
    assert waiting[2] in mesh.running
    with pytest.raises(ValueError, match="negative"):
        mesh.admission.resize("b", -1, 0)


def test_down_and_cordoned_backends_keep_their_ledger() -> None:
    mesh = Mesh(*one(2))
    request, other = mesh.offer(), mesh.offer()
    waiting = mesh.offer()
    mesh.apply(mesh.admission.set_up("b", False, 0))
    mesh.finish(request)
    assert waiting in mesh.waiting
    assert mesh.backend().running == 1
    assert not mesh.backend().up
    mesh.apply(mesh.admission.cordon("b", True, 0))
    mesh.apply(mesh.admission.set_up("b", True, 0))
    assert waiting in mesh.waiting
    mesh.apply(mesh.admission.cordon("b", False, 0))
    assert waiting in mesh.running
    mesh.finish(other)


def test_waited_counts_the_line_and_not_the_slot() -> None:
    mesh = Mesh(*one(1))
    first = mesh.offer()
    second = mesh.offer()
    mesh.tick(2.5)
    mesh.finish(first)
    mesh.tick(5)
    assert first.waited_s == 0
    assert second.waited_s == 2.5
    mesh.finish(second)


def test_snapshots_add_up_and_say_what_is_so() -> None:
    mesh = Mesh(
        [BackendSpec("b", 2), BackendSpec("c", 1)],
        [ModelSpec("m", ("b",), max_waiting=5), ModelSpec("n", ("c",), max_waiting=5)],
        [TenantSpec("a", 2.0)],
    )
    running = [mesh.offer("a"), mesh.offer("x"), mesh.offer("x", "n")]
    mesh.offer("a", size_bytes=70)
    mesh.now = 2.0
    mesh.offer("x", size_bytes=7)
    mesh.abort(running[0])
    snapshot = mesh.admission.snapshot(5.0)
    assert snapshot.at == 5.0
    line = snapshot.lines[0]
    assert (line.total, line.oldest_s, line.by_tenant, line.limit) == (2, 5.0, {"a": 1, "x": 1}, 5)
    tenants = {tenant.name: tenant for tenant in snapshot.tenants}
    assert (tenants["a"].running, tenants["a"].draining, tenants["a"].waiting) == (0, 1, 1)
    assert (tenants["x"].running, tenants["x"].waiting, tenants["x"].service) == (2, 1, 2.0)
    totals = snapshot.totals
    assert (totals.accepted, totals.running, totals.waiting, totals.cancelled) == (5, 2, 2, 1)
    assert (totals.grants, totals.settled, totals.waiting_bytes) == (3, 0, 77)


def test_specs_are_checked() -> None:
    with pytest.raises(ValueError, match="twice"):
        ModelSpec("m", ("b", "b"))
    with pytest.raises(ValueError, match="no backends"):
        ModelSpec("m", ())
    with pytest.raises(ValueError, match="routing"):
        ModelSpec("m", ("b",), routing="random")
    with pytest.raises(ValueError, match="weight"):
        TenantSpec("t", 0)
    with pytest.raises(ValueError, match="slots"):
        BackendSpec("b", -1)
    with pytest.raises(ValueError, match="negative"):
        ModelSpec("m", ("b",), max_waiting=-1)
    assert Limits().max_waiting_bytes == 256 * 1024 * 1024


def test_check_notices_books_that_do_not_add_up() -> None:
    mesh = Mesh(*one(2))
    mesh.offer()
    state = mesh.admission._state
    for break_it, mend_it in (
        (lambda: setattr(state.books, "held", 2), lambda: setattr(state.books, "held", 1)),
        (lambda: setattr(state.books, "accepted", 2), lambda: setattr(state.books, "accepted", 1)),
        (
            lambda: setattr(state.backends["b"], "running", 0),
            lambda: setattr(state.backends["b"], "running", 1),
        ),
        (
            lambda: setattr(state.models["m"].line, "count", 1),
            lambda: setattr(state.models["m"].line, "count", 0),
        ),
    ):
        break_it()
        with pytest.raises(InvariantError):
            mesh.admission.check()
        mend_it()
        mesh.admission.check()
