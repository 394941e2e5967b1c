"""The breaker, alone and inside admission: never the model's last backend."""

from __future__ import annotations

from inferencemesh.core.breaker import Breaker, BreakerState
from inferencemesh.core.model import BackendSpec, BreakerSpec, ModelSpec
from inferencemesh.core.request import RequestState
from tests.core.driver import Mesh

SPEC = BreakerSpec(ratio=0.5, min_requests=4, window_s=10, open_for_s=5, half_open=2)


def test_it_wants_to_open_at_the_ratio_of_enough_results() -> None:
    breaker = Breaker(SPEC)
    assert not breaker.record(False, 0.0)
    assert not breaker.record(False, 0.1)
    assert not breaker.record(True, 0.2)
    assert not breaker.record(True, 0.3)  # the ratio is reached, and a success opens nothing
    assert breaker.record(False, 0.4)


def test_what_is_older_than_the_window_does_not_count() -> None:
    breaker = Breaker(SPEC)
    for at in (0.0, 1.0, 2.0):
        assert not breaker.record(False, at)
    assert not breaker.record(False, 11.5)  # two of them are forgotten
    assert not breaker.record(False, 12.5)
    assert not breaker.record(False, 13.0)
    assert breaker.record(False, 13.5)


def test_half_open_closes_after_successes_and_reopens_at_a_failure() -> None:
    breaker = Breaker(SPEC)
    breaker.open(1.0)
    assert breaker.open_until == 6.0
    assert not breaker.record(False, 2.0)  # stragglers say nothing new
    breaker.half_open()
    assert not breaker.record(True, 6.0)
    assert breaker.record(False, 6.1)
    breaker.open(6.1)
    breaker.half_open()
    breaker.record(True, 12.0)
    breaker.record(True, 12.1)
    assert breaker.state is BreakerState.CLOSED
    assert not breaker.record(False, 12.2)  # counted anew


def mesh_of(models: list[ModelSpec], **more: int) -> Mesh:
    return Mesh([BackendSpec(name, 2) for name in "bcd"], models, breaker=SPEC, **more)  # type: ignore[arg-type]


def fail(mesh: Mesh, name: str, times: int = 4) -> None:
    for _ in range(times):
        mesh.apply(mesh.admission.report(name, False, mesh.now))


def test_an_open_backend_gets_nothing_then_a_few_then_all() -> None:
    mesh = mesh_of([ModelSpec("m", ("b", "c"), max_waiting=9, queue_timeout_s=100)])
    fail(mesh, "b")
    assert mesh.backend("b").breaker == "open"
    requests = [mesh.offer() for _ in range(6)]
    assert {request.lease.backend.name for request in requests[:2] if request.lease} == {"c"}
    assert len(mesh.running) == 2
    assert mesh.admission.next_wake_at() == 5.0
    mesh.tick(5)
    assert mesh.backend("b").breaker == "half_open"
    assert len(mesh.running) == 4  # two trials
    mesh.apply(mesh.admission.resize("b", 4, mesh.now))
    assert len(mesh.running) == 4
    trial = next(r for r in mesh.running if r.lease and r.lease.backend.name == "b")
    mesh.abort(trial)  # an end of ours is no result: another trial takes its place
    assert mesh.backend("b").running == 2
    for _ in range(2):
        mesh.apply(mesh.admission.report("b", True, mesh.now))
    assert mesh.backend("b").breaker == "closed"
    assert all(request.state is not RequestState.WAITING for request in requests)


def test_a_failed_trial_opens_again() -> None:
    mesh = mesh_of([ModelSpec("m", ("b", "c"), max_waiting=9)])
    fail(mesh, "b")
    mesh.tick(5)
    fail(mesh, "b", 1)
    assert mesh.backend("b").breaker == "open"
    assert mesh.admission.next_wake_at() == 10.0


def test_it_never_opens_a_models_last_backend() -> None:
    mesh = mesh_of([ModelSpec("m", ("b", "c"), max_waiting=9), ModelSpec("alone", ("d",), max_waiting=9)])
    fail(mesh, "d", 50)
    assert mesh.backend("d").breaker == "closed"
    fail(mesh, "b")
    fail(mesh, "c", 50)
    assert (mesh.backend("b").breaker, mesh.backend("c").breaker) == ("open", "closed")


def test_a_backend_down_or_cordoned_is_no_alternative() -> None:
    mesh = mesh_of([ModelSpec("m", ("b", "c"), max_waiting=9)])
    mesh.apply(mesh.admission.cordon("c", True, 0))
    fail(mesh, "b", 50)
    assert mesh.backend("b").breaker == "closed"


def test_an_open_breaker_closes_when_the_alternative_goes() -> None:
    mesh = mesh_of([ModelSpec("m", ("b", "c"), max_waiting=9)])
    fail(mesh, "b")
    taken = [mesh.offer() for _ in range(3)]
    assert taken[2] in mesh.waiting
    mesh.apply(mesh.admission.set_up("c", False, 0))
    assert mesh.backend("b").breaker == "closed"
    assert taken[2] in mesh.running


def test_a_shared_backend_is_spared_for_the_model_that_has_no_other() -> None:
    mesh = mesh_of([ModelSpec("m", ("b", "c"), max_waiting=9), ModelSpec("n", ("b",), max_waiting=9)])
    fail(mesh, "b", 50)
    assert mesh.backend("b").breaker == "closed"
