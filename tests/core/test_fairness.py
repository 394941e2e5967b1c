"""Who is next: shares by weight, no credit for idleness, parked tenants, classes, several models (contract D)."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest

from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.request import RequestState
from tests.core.driver import Mesh, one


@pytest.mark.parametrize("seed", range(8))
def test_backlogged_tenants_differ_by_one_charge_each(seed: int) -> None:
    """Bound B1: |D_i/w_i - D_j/w_j| <= e/w_i + e/w_j over any interval in which both are backlogged, tight."""
    rng = random.Random(seed)
    weights = [rng.choice([1, 1, 2, 3, 5, 10]) for _ in range(4)]
    widest = rng.choice([1, 1, 3])
    slots = rng.choice([1, 2, 7, 32])
    slots = max(slots, widest)
    tenants = [TenantSpec(f"t{index}", weight) for index, weight in enumerate(weights)]
    mesh = Mesh(*one(slots, places=10_000, queue_timeout_s=1e6), tenants, checks=False)
    mesh.offer("other", width=slots)  # holds everything until all are backlogged
    first = next(iter(mesh.running))
    backlog = {tenant.name: 0 for tenant in tenants}

    def fill() -> None:
        for tenant in tenants:
            while backlog[tenant.name] < 40:
                mesh.offer(tenant.name, width=rng.randint(1, widest))
                backlog[tenant.name] += 1

    fill()
    mesh.finish(first)
    seen = 1
    lows = {(i, j): Fraction(0) for i in range(4) for j in range(4)}
    for _ in range(400):
        for request in mesh.order[seen:]:
            backlog[request.tenant] -= 1
            assert backlog[request.tenant] > 0, "the test needs tenants that wait all the while"
        seen = len(mesh.order)
        fill()
        service = {tenant.name: tenant.service for tenant in mesh.admission.snapshot(0).tenants}
        share = [Fraction(service[f"t{index}"]) / weights[index] for index in range(4)]
        for i in range(4):
            for j in range(4):
                gap = share[i] - share[j]
                lows[i, j] = min(lows[i, j], gap)
                assert gap - lows[i, j] <= Fraction(widest, weights[i]) + Fraction(widest, weights[j])
        mesh.finish(rng.choice(list(mesh.running)))
    mesh.check()


def test_idleness_banks_no_credit() -> None:
    mesh = Mesh(*one(1, places=100))
    mesh.offer("early")
    for _ in range(20):
        mesh.offer("busy")
    for _ in range(10):
        mesh.finish(next(iter(mesh.running)))
    for _ in range(6):
        mesh.offer("early")  # long idle, and served next to the other, not ahead of it
    start = len(mesh.order)
    for _ in range(8):
        mesh.finish(next(iter(mesh.running)))
    assert Counter(request.tenant for request in mesh.order[start:]) == {"early": 4, "busy": 4}


def test_a_newcomer_does_not_wait_for_the_backlog() -> None:
    mesh = Mesh(*one(2, places=200))
    for _ in range(150):
        mesh.offer("flood")
    small = mesh.offer("small")
    mesh.finish(next(iter(mesh.running)))
    assert small.state is RequestState.RUNNING  # one release (D5)


def test_the_past_is_no_debt_once_everybody_was_idle() -> None:
    mesh = Mesh(*one(1, places=10))
    for _ in range(50):
        mesh.finish(mesh.offer("busy"))
    for name in ("new", "busy", "busy", "new"):
        mesh.offer(name)
    for _ in range(3):
        mesh.finish(next(iter(mesh.running)))
    # One each, then a tie that the earlier arrival wins: fifty earlier services count for nothing.
    assert [request.tenant for request in mesh.order[-4:]] == ["new", "busy", "busy", "new"]


def test_a_tenant_at_its_limit_stands_in_nobodys_way() -> None:
    backends, models = one(4)
    mesh = Mesh(backends, models, [TenantSpec("capped", max_running=2)])
    first = [mesh.offer("capped") for _ in range(4)]
    assert [request.state for request in first] == [RequestState.RUNNING] * 2 + [RequestState.WAITING] * 2
    others = [mesh.offer("other") for _ in range(3)]
    assert [request.state for request in others] == [RequestState.RUNNING] * 2 + [RequestState.WAITING]
    mesh.finish(others[0])
    assert others[2] in mesh.running  # passed by, and it holds no slot
    lease = mesh.abort(first[0])
    assert first[2] in mesh.waiting  # draining counts against the tenant
    mesh.confirm(lease)
    assert first[2] in mesh.running


def test_a_parked_tenant_is_lifted_when_it_comes_back() -> None:
    backends, models = one(3, places=60)
    mesh = Mesh(backends, models, [TenantSpec("capped", max_running=2)])
    mine = [mesh.offer("capped") for _ in range(2)]
    for _ in range(20):
        mesh.offer("capped")
        mesh.offer("other")
    for _ in range(10):  # it is parked, and cannot use what it is due
        mesh.finish(next(request for request in mesh.running if request.tenant == "other"))
    start = len(mesh.order)
    mesh.finish(mine[0])
    mesh.finish(mine[1])
    for _ in range(4):
        for request in list(mesh.running):
            mesh.finish(request)
    served = Counter(request.tenant for request in mesh.order[start:])
    assert abs(served["capped"] - served["other"]) <= 2  # no ten turns in hand


def test_draining_is_charged_to_who_cancelled() -> None:
    mesh = Mesh(*one(2, places=20))
    calm = mesh.offer("calm")
    storm = mesh.offer("storm")
    for name in ("storm", "storm", "storm", "calm", "calm"):
        mesh.offer(name)
    mesh.finish(calm)
    mesh.confirm(mesh.abort(storm))
    served = [request.tenant for request in mesh.order[2:]]
    assert sorted(served) == ["calm", "storm"]


def test_classes_order_within_a_tenant_by_arrival_and_offset() -> None:
    mesh = Mesh(*one(1, places=20))
    running = mesh.offer()
    low = mesh.offer(class_offset_s=30.0)
    mesh.tick(4)
    normal = mesh.offer(class_offset_s=5.0)
    mesh.tick(4)
    high = mesh.offer()  # at 8 s: before `normal` (4 + 5), far before `low`
    other = mesh.offer("other", class_offset_s=30.0)
    order = []
    for _ in range(4):
        mesh.finish(running)
        running = next(iter(mesh.running))
        order.append(running)
    assert [request for request in order if request is not other] == [high, normal, low]
    assert order.index(other) <= 1  # between tenants the class says nothing


def test_nobody_is_overtaken_from_beyond_the_offset() -> None:
    mesh = Mesh(*one(1, places=20, queue_timeout_s=100))
    running = mesh.offer()
    low = mesh.offer(class_offset_s=5.0)
    mesh.tick(6)
    late = [mesh.offer() for _ in range(3)]
    mesh.finish(running)
    assert low in mesh.running
    assert all(request in mesh.waiting for request in late)


def test_a_model_without_slots_does_not_block_the_tenants_other_models() -> None:
    mesh = Mesh(
        [BackendSpec("b", 1), BackendSpec("c", 1)],
        [ModelSpec("x", ("b",), max_waiting=9), ModelSpec("y", ("b", "c"), max_waiting=9)],
    )
    on_b = mesh.offer("t", "x")
    on_c = mesh.offer("t", "y")
    stuck = mesh.offer("t", "x")
    other = mesh.offer("t", "y")
    mesh.finish(on_c)
    assert other in mesh.running
    assert stuck in mesh.waiting
    mesh.finish(on_b)
    assert stuck in mesh.running


def test_a_newcomer_to_a_slow_model_stands_beside_those_who_wait_for_it() -> None:
    """Two models share a backend only in part: the slow one's waiters lag behind the pool's virtual time."""
    mesh = Mesh(
        [BackendSpec("slow", 1), BackendSpec("fast", 1)],
        [
            ModelSpec("x", ("slow",), max_waiting=99, queue_timeout_s=1000),
            ModelSpec("y", ("slow", "fast"), max_waiting=99, queue_timeout_s=1000),
        ],
    )
    stuck = mesh.offer("a", "x")
    for _ in range(20):
        mesh.offer("a", "x")
    mesh.offer("b", "y")
    for _ in range(60):
        mesh.offer("b", "y")
    for _ in range(50):
        mesh.finish(next(request for request in mesh.running if request.tenant == "b"))
    newcomer = mesh.offer("c", "x")
    mesh.finish(stuck)
    mesh.finish(next(request for request in mesh.running if request.model == "x"))
    assert newcomer in mesh.running  # not behind the twenty that `a` has been waiting with
    late = mesh.offer("d", "y")
    mesh.finish(next(request for request in mesh.running if request.tenant == "b"))
    assert late in mesh.running  # nor ahead, or behind, among those of the fast one
    later = mesh.offer("a", "y")
    for _ in range(3):
        mesh.finish(next(request for request in mesh.running if request.lease.backend.name == "fast"))  # type: ignore[union-attr]
    assert later in mesh.order  # its wait for the slow one is no debt here


def test_waiting_for_a_stuck_model_banks_no_credit_for_another() -> None:
    mesh = Mesh(
        [BackendSpec("slow", 1), BackendSpec("fast", 1)],
        [
            ModelSpec("x", ("slow",), max_waiting=99, queue_timeout_s=1000),
            ModelSpec("y", ("slow", "fast"), max_waiting=99, queue_timeout_s=1000),
        ],
    )
    mesh.offer("a", "x")
    mesh.offer("a", "x")
    for _ in range(61):
        mesh.offer("b", "y")
    for _ in range(40):
        mesh.finish(next(request for request in mesh.running if request.tenant == "b"))
    for _ in range(10):
        mesh.offer("a", "y")
    start = len(mesh.order)
    for _ in range(10):
        mesh.finish(next(request for request in mesh.running if request.lease.backend.name == "fast"))  # type: ignore[union-attr]
    assert Counter(request.tenant for request in mesh.order[start:]) == {"a": 5, "b": 5}


def test_a_bound_over_all_backends_is_shared_fairly() -> None:
    mesh = Mesh(
        [BackendSpec("b", 4), BackendSpec("c", 4)],
        [ModelSpec("m", ("b",), max_waiting=30), ModelSpec("n", ("c",), max_waiting=30)],
        limits=Limits(max_running=2),
    )
    for _ in range(12):
        mesh.offer("flood", "m")
    small = [mesh.offer("small", "n") for _ in range(2)]
    assert len(mesh.running) == 2
    mesh.finish(next(iter(mesh.running)))
    assert small[0] in mesh.running
    wide = mesh.offer("wide", "n", width=2)
    while wide in mesh.waiting:
        assert len(mesh.order) < 12  # its turn comes, and nobody overtakes it while it waits for two
        mesh.finish(next(iter(mesh.running)))


def test_forgetting_idle_tenants_changes_nothing_and_bounds_memory() -> None:
    mesh = Mesh(*one(2, places=50), checks=False)
    mesh.offer("busy")
    mesh.offer("busy")
    for number in range(3000):
        mesh.offer("busy")
        mesh.offer(f"once{number}")
        mesh.finish(next(iter(mesh.running)))
        mesh.finish(next(iter(mesh.running)))
    mesh.check()
    assert len(mesh.admission._state.tenants) < 120
    assert len(mesh.admission._state.pools[0].queue.flows) < 120


def test_the_same_history_gives_the_same_decisions() -> None:
    def run() -> list[str]:
        rng = random.Random(3)
        mesh = Mesh(*one(3, places=6), checks=False)
        for _ in range(200):
            mesh.offer(rng.choice("abc"), class_offset_s=rng.choice([0.0, 2.0]), width=rng.choice([1, 1, 2]))
            if mesh.running and rng.random() < 0.5:
                mesh.finish(rng.choice(list(mesh.running)))
            mesh.tick(0.1)
        return [request.id for request in mesh.order]

    assert run() == run()
