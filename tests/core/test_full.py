"""The backend's own admission is authoritative: "full" is no failure, and capacity is believed as proven (B6)."""

from __future__ import annotations

import pytest

from inferencemesh.core.admission import Granted, InvariantError, Queued
from inferencemesh.core.model import BackendSpec, ModelSpec, TenantSpec
from inferencemesh.core.request import Request, RequestState
from tests.core.driver import DONE, Mesh, one


def started(mesh: Mesh, request: Request) -> None:
    mesh.apply(mesh.admission.started(mesh.running[request], mesh.now))


def test_full_goes_back_to_the_head_outside_the_bound_and_is_no_attempt() -> None:
    mesh = Mesh(*one(4, places=2))
    running = [mesh.offer() for _ in range(4)]
    behind = [mesh.offer() for _ in range(2)]
    mesh.tick(1)
    effects = mesh.requeue(running[0], full=True)
    assert [type(effect) for effect in effects] == [Queued]
    assert running[0].attempts == 0
    assert mesh.line().total == 3  # the bound is 2
    assert mesh.backend().believed == 3
    assert mesh.backend().free == 0
    assert mesh.refused[mesh.offer()] == "queue_full"
    mesh.tick(0.25)  # sent back by its only backend, it rests as long as that backs off
    assert running[0] in mesh.running  # the probe is its: first in its tenant
    assert running[0].attempts == 1
    mesh.finish(running[2])
    assert behind[0] in mesh.running


def test_what_is_proven_is_used_during_the_backoff() -> None:
    mesh = Mesh(*one(4))
    running = [mesh.offer() for _ in range(4)]
    behind = mesh.offer()
    mesh.requeue(running[0], full=True)
    mesh.finish(running[1])
    assert behind in mesh.running
    assert running[0] in mesh.waiting


def test_the_slot_is_not_given_away_before_the_shrink_is_known() -> None:
    mesh = Mesh(*one(2))
    first, second = mesh.offer(), mesh.offer()
    waiting = mesh.offer()
    assert not [effect for effect in mesh.requeue(first, full=True) if isinstance(effect, Granted)]
    assert waiting in mesh.waiting
    mesh.finish(second)
    assert waiting in mesh.running
    mesh.tick(0.25)
    assert first in mesh.running


def test_it_keeps_deadline_and_the_rest_of_its_patience() -> None:
    mesh = Mesh(*one(1, queue_timeout_s=10))
    first = mesh.offer()
    request = mesh.offer(ttl_s=100)
    mesh.tick(4)
    mesh.finish(first)
    mesh.tick(20)  # holding a slot costs no patience
    mesh.requeue(request, full=True, not_before_s=60)
    assert request.waited_s == pytest.approx(4)
    mesh.tick(5.9)
    assert request in mesh.waiting
    mesh.tick(0.2)
    assert mesh.ended[request] == "queue_timeout"
    mesh.tick(60)
    late = mesh.offer(ttl_s=1)
    mesh.now += 1  # and nobody has called `expire` yet
    mesh.requeue(late, full=True)
    assert mesh.ended[late] == "deadline_exceeded"


def test_capacity_is_probed_by_one_and_grows_back() -> None:
    mesh = Mesh(*one(6, places=40))
    running = [mesh.offer() for _ in range(6)]
    for _ in range(20):
        mesh.offer()
    for request in running[3:]:  # one burst: the engine has room for three
        mesh.requeue(request, full=True)
    assert mesh.backend().believed == 3
    mesh.tick(0.24)
    assert mesh.backend().believed == 3
    mesh.tick(0.02)
    assert mesh.backend().believed == 4  # one more is tried
    assert len(mesh.running) == 4
    probe = mesh.order[-1]
    mesh.requeue(probe, full=True)
    assert mesh.backend().believed == 3
    mesh.tick(0.3)
    assert mesh.backend().believed == 3  # the back-off has doubled
    mesh.tick(0.25)
    for expected in (4, 5, 6):
        assert mesh.backend().believed == expected
        assert len(mesh.running) == expected
        started(mesh, mesh.order[-1])
    assert len(mesh.running) == 6


def test_content_of_those_who_ran_before_proves_nothing() -> None:
    mesh = Mesh(*one(4))
    running = [mesh.offer() for _ in range(4)]
    mesh.requeue(running[3], full=True)
    mesh.tick(0.3)
    assert running[3] in mesh.running
    for request in running[:3]:
        started(mesh, request)
    assert mesh.admission._state.backends["b"].proven == 3
    mesh.finish(running[3], DONE)  # a plain answer is a proof as well
    assert mesh.admission._state.backends["b"].proven is None


def test_the_backoff_doubles_up_to_five_seconds() -> None:
    mesh = Mesh(*one(1, queue_timeout_s=1000))
    waits: list[float] = []
    mesh.offer()
    for _ in range(8):
        request = next(iter(mesh.running))
        mesh.offer(f"t{len(waits)}")
        since = mesh.now
        mesh.requeue(request, full=True)
        assert mesh.backend().believed == 0
        while not mesh.running:
            mesh.tick(0.05)
        waits.append(mesh.now - since)
    assert waits[:5] == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0], abs=0.06)
    assert waits[5:] == pytest.approx([5.0, 5.0, 5.0], abs=0.06)


def test_not_before_holds_for_everybody_on_that_backend_only() -> None:
    backends = [BackendSpec("b", 2), BackendSpec("c", 1)]
    mesh = Mesh(backends, [ModelSpec("m", ("b", "c"), max_waiting=9)])
    first = mesh.offer()
    assert first.lease is not None
    name = first.lease.backend.name
    mesh.requeue(first, full=True, not_before_s=2.0)
    assert first.lease.backend.name != name  # granted at once elsewhere
    others = [mesh.offer(), mesh.offer(), mesh.offer()]
    assert not [r for r in others if r in mesh.running and r.lease and r.lease.backend.name == name]
    mesh.tick(1.9)
    assert not [r for r in others if r in mesh.running and r.lease and r.lease.backend.name == name]
    mesh.tick(0.2)
    assert [r for r in others if r in mesh.running and r.lease and r.lease.backend.name == name]


def test_the_charge_of_an_undone_grant_is_given_back() -> None:
    mesh = Mesh(*one(2, places=20), tenants=[TenantSpec("a", 3.0), TenantSpec("b", 7.0)])
    flow = mesh.admission._state.pools[0].queue
    undone = mesh.offer("a")
    mesh.offer("b")
    for _ in range(3):
        mesh.offer("a")
        mesh.offer("b")
    service = {tenant.name: tenant.service for tenant in mesh.admission.snapshot(0).tenants}
    before = {tenant.name: held.service for tenant, held in flow.flows.items()}
    for _ in range(5):
        mesh.requeue(undone, full=True)
        mesh.tick(6)
        assert undone in mesh.running
    assert {tenant.name: held.service for tenant, held in flow.flows.items()} == before  # to the last digit
    assert {tenant.name: tenant.service for tenant in mesh.admission.snapshot(0).tenants} == service


def test_a_retry_prefers_another_backend_and_falls_back_to_the_only_one() -> None:
    mesh = Mesh(
        [BackendSpec("b", 1), BackendSpec("c", 1)],
        [ModelSpec("m", ("b", "c"), max_waiting=9)],
    )
    request, other = mesh.offer(), mesh.offer()
    behind = mesh.offer("behind")
    assert request.lease is not None
    assert request.lease.backend.name == "b"
    mesh.release(request)  # the freed slot goes to who waits
    assert behind in mesh.running
    mesh.requeue(request, full=False, avoid=True)
    mesh.finish(behind)
    assert request in mesh.waiting  # b is free and usable, and c is usable, too
    narrow = mesh.offer("narrow")
    assert narrow in mesh.running  # in nobody's way: b serves the others
    mesh.finish(other)
    assert request in mesh.running
    assert request.lease.backend.name == "c"
    assert request.attempts == 2
    mesh.apply(mesh.admission.set_up("b", False, mesh.now))
    mesh.requeue(request, full=False, avoid=True)
    assert request in mesh.running  # the only usable one


def test_who_comes_back_is_first_in_its_tenant_whatever_its_class() -> None:
    mesh = Mesh(*one(1))
    low = mesh.offer(class_offset_s=30.0)
    high = mesh.offer()
    mesh.requeue(low, full=False)
    assert low in mesh.running
    assert high in mesh.waiting


def test_a_draining_attempt_goes_on_counting() -> None:
    mesh = Mesh(*one(2))
    request = mesh.offer()
    lease = mesh.running[request]
    mesh.apply(mesh.admission.drain(lease, 0))
    mesh.drains[lease] = None
    mesh.requeue(request, full=False)
    assert request in mesh.running
    assert request.lease is not lease
    assert (mesh.backend().running, mesh.backend().draining) == (1, 1)
    with pytest.raises(InvariantError):
        mesh.admission.requeue(lease, 0, full=False)  # not its lease any more
    mesh.finish(request)
    mesh.confirm(lease)
    mesh.is_free()
    assert request.state is RequestState.SETTLED


def test_a_model_is_quiet_as_long_as_all_its_backends_are() -> None:
    backends = [BackendSpec("b0", 1), BackendSpec("b1", 1)]
    mesh = Mesh(backends, [ModelSpec("m", ("b0", "b1"), max_waiting=5)])
    first, second = mesh.offer(), mesh.offer()
    model = mesh.admission._state.models["m"]
    mesh.requeue(first, not_before_s=8.0)
    assert model.quiet_s(mesh.now) == 0.0
    mesh.requeue(second, not_before_s=3.0)
    assert model.quiet_s(mesh.now) == pytest.approx(3.0)
