"""Wide requests: they take their width on one backend, and narrow ones do not overtake them for ever (A13)."""

from __future__ import annotations

import pytest

from inferencemesh.core.admission import Effect, Granted
from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.request import Request, RequestState
from tests.core.driver import Mesh, one


def two(first: int, second: int) -> tuple[list[BackendSpec], list[ModelSpec]]:
    return [BackendSpec("b", first), BackendSpec("c", second)], [ModelSpec("m", ("b", "c"), max_waiting=16)]


def granted(effects: list[Effect]) -> list[Request]:
    return [effect.request for effect in effects if isinstance(effect, Granted)]


def test_width_is_taken_on_one_backend() -> None:
    mesh = Mesh(*two(3, 4))
    request = mesh.offer(width=4)
    assert mesh.backend("c").running == 4
    assert mesh.offer(width=3).state is RequestState.RUNNING
    assert mesh.offer(width=2).state is RequestState.WAITING
    mesh.finish(request)
    assert mesh.backend("c").running == 2


@pytest.mark.parametrize("tenants", [(), (TenantSpec("t", max_running=3),)])
def test_wider_than_it_can_ever_be_given_is_invalid(tenants: tuple[TenantSpec, ...]) -> None:
    mesh = Mesh(*two(2, 4), tenants)
    mesh.apply(mesh.admission.set_up("c", False, 0))
    wide = mesh.offer(width=4)
    assert mesh.refused.get(wide) == (
        "invalid_request" if tenants else None
    )  # a configured backend is enough
    assert mesh.refused[mesh.offer(width=5)] == "invalid_request"
    assert mesh.refused[mesh.offer(width=0)] == "invalid_request"


def test_wider_than_the_bound_over_all_backends_is_invalid() -> None:
    mesh = Mesh(*one(8), limits=Limits(max_running=3))
    assert mesh.refused[mesh.offer(width=4)] == "invalid_request"


def test_a_wide_head_is_not_overtaken_for_ever() -> None:
    mesh = Mesh(*one(4, places=30))
    running = [mesh.offer("narrow") for _ in range(4)]
    wide = mesh.offer("wide", width=4)
    for _ in range(20):
        mesh.offer("narrow")
    for request in running[:3]:
        assert not granted(mesh.finish(request))  # collected, not given to the narrow ones
        mesh.offer("narrow")
    assert mesh.backend().reserved_for == wide.id
    assert wide.state is RequestState.WAITING
    assert granted(mesh.finish(running[3])) == [wide]
    assert mesh.backend().reserved_for is None


def test_other_backends_go_on_while_one_collects() -> None:
    mesh = Mesh(*two(4, 2))
    running = [mesh.offer("narrow") for _ in range(6)]
    wide = mesh.offer("wide", width=4)
    more = [mesh.offer("narrow") for _ in range(6)]
    on_b = [request for request in running if request.lease and request.lease.backend.name == "b"]
    on_c = [request for request in running if request not in on_b]
    assert not granted(mesh.finish(on_b[0]))
    assert granted(mesh.finish(on_c[0])) == [more[0]]
    assert granted(mesh.finish(on_c[1])) == [more[1]]
    for request in on_b[1:3]:
        assert not granted(mesh.finish(request))
    assert granted(mesh.finish(on_b[3])) == [wide]


def test_cancelling_a_collecting_waiter_gives_the_permits_back_in_the_same_step() -> None:
    mesh = Mesh(*one(4))
    running = [mesh.offer("narrow") for _ in range(4)]
    wide = mesh.offer("wide", width=4)
    waiting = [mesh.offer("narrow") for _ in range(3)]
    mesh.finish(running[0])
    mesh.finish(running[1])
    assert mesh.backend().free == 2
    assert granted(mesh.cancel(wide)) == waiting[:2]
    assert mesh.backend().free == 0
    for request in [*running[2:], *waiting[:2]]:
        mesh.finish(request)
    mesh.finish(waiting[2])
    mesh.is_free()


@pytest.mark.parametrize("cause", ["deadline_exceeded", "queue_timeout", "displaced"])
def test_every_other_end_of_a_collecting_waiter_does_so_too(cause: str) -> None:
    backends, models = one(4, places=4 if cause == "displaced" else 16)
    mesh = Mesh(backends, models, [TenantSpec("heavy", 10.0)])
    running = [mesh.offer("narrow") for _ in range(4)]
    wide = mesh.offer("wide", width=4, ttl_s=2 if cause == "deadline_exceeded" else 600)
    mesh.finish(running[0])
    mesh.finish(running[1])
    assert mesh.backend().reserved_for == wide.id
    if cause == "displaced":
        heavy = [mesh.offer("heavy") for _ in range(3)]
        assert wide not in mesh.ended
        heavy.append(mesh.offer("heavy"))
        assert [request in mesh.running for request in heavy] == [True, True, False, False]
    else:
        mesh.tick(1.0)
        later = mesh.offer("later")
        mesh.tick(1.0 if cause == "deadline_exceeded" else 9.0)
        assert later.state is RequestState.RUNNING
    assert mesh.ended[wide] == cause
    assert mesh.backend().reserved_for is None


@pytest.mark.parametrize("how", ["shrink", "down", "cordon"])
def test_a_backend_that_can_no_longer_fit_sends_its_waiter_back_to_the_head(how: str) -> None:
    mesh = Mesh(*two(4, 4))
    running = [mesh.offer("narrow") for _ in range(8)]
    wide = mesh.offer("wide", width=3)
    behind = [mesh.offer("wide") for _ in range(2)]
    on_b = [request for request in running if request.lease and request.lease.backend.name == "b"]
    on_c = [request for request in running if request not in on_b]
    mesh.finish(on_b[0])
    assert mesh.backend("b").reserved_for == wide.id
    match how:
        case "shrink":
            mesh.apply(mesh.admission.resize("b", 2, mesh.now))
        case "down":
            mesh.apply(mesh.admission.set_up("b", False, mesh.now))
        case "cordon":
            mesh.apply(mesh.admission.cordon("b", True, mesh.now))
    assert mesh.backend("b").reserved_for is None
    assert wide.state is RequestState.WAITING
    assert not granted(mesh.finish(on_c[0]))  # its turn again: it collects on the other
    assert mesh.backend("c").reserved_for == wide.id
    mesh.finish(on_c[1])
    assert granted(mesh.finish(on_c[2])) == [wide]
    assert all(request.state is RequestState.WAITING for request in behind)


def test_it_takes_another_backend_that_fits_earlier() -> None:
    mesh = Mesh(*two(2, 2))
    running = [mesh.offer("narrow") for _ in range(4)]
    on_b = [request for request in running if request.lease and request.lease.backend.name == "b"]
    wide = mesh.offer("wide", width=2)
    mesh.finish(on_b[0])
    assert mesh.backend("b").reserved_for == wide.id
    assert granted(mesh.apply(mesh.admission.resize("c", 4, mesh.now))) == [wide]
    assert mesh.backend("c").running == 4
    assert mesh.backend("b").free == 1


def test_a_collecting_waiter_counts_against_its_tenants_limit() -> None:
    backends, models = one(4)
    mesh = Mesh(backends, models, [TenantSpec("capped", max_running=3)])
    narrow = [mesh.offer("narrow") for _ in range(4)]
    wide = mesh.offer("capped", width=3)
    own = mesh.offer("capped")
    mesh.finish(narrow[0])
    mesh.finish(narrow[1])
    mesh.finish(narrow[2])
    assert wide in mesh.running
    assert own in mesh.waiting  # 3 of 3
    other = mesh.offer("other")
    mesh.finish(narrow[3])
    assert other in mesh.running  # and stands in nobody's way
    mesh.finish(wide)
    assert own in mesh.running


def test_a_tenants_wide_head_is_not_overtaken_by_its_own_narrow_ones() -> None:
    backends, models = one(8)
    mesh = Mesh(backends, models, [TenantSpec("capped", max_running=3)])
    first, second = mesh.offer("capped"), mesh.offer("capped")
    wide = mesh.offer("capped", width=2)
    assert mesh.backend().free == 6
    narrow = [mesh.offer("capped") for _ in range(3)]
    assert all(request in mesh.waiting for request in narrow)
    mesh.finish(first)
    assert wide in mesh.running
    mesh.finish(second)
    assert narrow[0] in mesh.running
    mesh.cancel(narrow[1])
    other = mesh.offer("other")
    assert other in mesh.running


def test_a_narrow_backend_serves_while_the_wide_ones_are_taken() -> None:
    """Work conservation with two wide waiters and one backend that is wide enough (D2)."""
    mesh = Mesh(*two(4, 1))
    running = [mesh.offer("narrow") for _ in range(5)]
    on_b = [request for request in running if request.lease and request.lease.backend.name == "b"]
    on_c = [request for request in running if request not in on_b]
    wide = [mesh.offer("wide", width=4), mesh.offer("wide", width=4)]
    narrow = mesh.offer("wide")
    mesh.finish(on_b[0])
    assert mesh.backend("b").reserved_for == wide[0].id
    assert granted(mesh.finish(on_c[0])) == [narrow]


def test_who_begins_to_collect_and_leaves_is_not_remembered() -> None:
    mesh = Mesh(*one(4, places=30), checks=False)
    mesh.offer("a")
    for _ in range(500):
        wide = mesh.offer("b", width=4)
        assert wide._reserved is not None
        mesh.cancel(wide)
    assert len(mesh.admission._state.alarms) <= 2 + 65


def test_patience_counts_from_the_last_time_that_it_began_to_collect() -> None:
    mesh = Mesh(*one(2, places=30, queue_timeout_s=1000))
    mesh.offer("a")
    wide = mesh.offer("b", width=2)
    patience_s = 20.0  # twice the mean service time that is believed at first
    mesh.tick(10.0)
    for slots in (1, 2):  # it cannot be served there for a moment
        mesh.apply(mesh.admission.resize("b", slots, mesh.now))
    assert wide._reserved is not None
    mesh.tick(patience_s - 1.0)
    assert (wide._reserved is not None, wide._collects) == (True, 0)
    mesh.tick(1.5)
    assert wide._collects == 1
    mesh.tick(2 * patience_s - 1.0)  # the next time it has twice as much
    assert wide._collects == 1
    mesh.tick(1.5)
    assert wide._collects == 2
