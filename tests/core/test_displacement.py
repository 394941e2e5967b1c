"""Places are shared fairly, too: a flood gives way, and two floods cannot keep a third tenant out (contract D8)."""

from __future__ import annotations

import random

import pytest

from inferencemesh.core.admission import Displaced, Queued
from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.request import RequestState
from tests.core.driver import Mesh, one


def test_the_newest_of_the_tenant_most_above_its_share_gives_way() -> None:
    mesh = Mesh(*one(1, places=8))
    mesh.offer("a")
    first = [mesh.offer("a") for _ in range(6)]
    second = [mesh.offer("b") for _ in range(2)]
    newcomer = mesh.request("c")
    effects = mesh.apply(mesh.admission.offer(newcomer, 0))
    assert [type(effect) for effect in effects] == [Displaced, Queued]
    assert effects[0].request is first[-1]
    assert mesh.ended[first[-1]] == "displaced"
    assert first[-1].outcome is not None
    assert all(request.state is RequestState.WAITING for request in [*first[:-1], *second, newcomer])
    assert mesh.line().by_tenant == {"a": 5, "b": 2, "c": 1}


def test_a_flood_alone_fills_the_line_and_does_not_displace_itself() -> None:
    mesh = Mesh(*one(1, places=4))
    for _ in range(10):
        mesh.offer("a")
    assert len(mesh.waiting) == 4
    assert set(mesh.refused.values()) == {"queue_full"}


def test_places_come_to_rest_at_the_shares() -> None:
    mesh = Mesh(
        *one(1, places=12), tenants=[TenantSpec("a", 1.0), TenantSpec("b", 2.0), TenantSpec("c", 3.0)]
    )
    mesh.offer("a")
    for name in "a" * 20 + "b" * 20 + "c" * 20 + "abc" * 20:
        mesh.offer(name)
    assert mesh.line().by_tenant == {"a": 2, "b": 4, "c": 6}
    before = len(mesh.ended)
    for name in "abc" * 20:
        mesh.offer(name)
    assert len(mesh.ended) == before  # balanced: nobody is displaced any more


@pytest.mark.parametrize("places", [1, 2, 3, 8])
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_two_floods_cannot_keep_a_third_tenant_out(places: int, slots: int) -> None:
    """Whenever it asks it has a place, and a slot, within a few releases; at most its share of them, of course."""
    rng = random.Random(places)
    mesh = Mesh(*one(slots, places=places), checks=False)

    def floods() -> None:
        for _ in range(4):
            mesh.offer(rng.choice(["flood1", "flood2"]))

    worst = 0
    for _ in range(200):
        for _ in range(rng.randrange(6)):
            floods()
            mesh.finish(rng.choice(list(mesh.running)))
        asked = None
        for releases in range(12):
            floods()
            if asked is None or asked in mesh.ended or asked in mesh.refused:
                asked = mesh.offer("light")
            floods()
            if asked in mesh.running:
                worst = max(worst, releases)
                break
            mesh.finish(rng.choice(list(mesh.running)))
        else:
            pytest.fail("the light tenant was kept out")
    mesh.check()
    assert worst <= 5


def test_two_floods_do_not_displace_each_other_in_turns() -> None:
    mesh = Mesh(*one(1, places=1))
    mesh.offer("a")
    for _ in range(50):
        mesh.offer("a")
        mesh.offer("b")
    assert list(mesh.ended.values()).count("displaced") <= 1
    assert [request.tenant for request in mesh.waiting] == ["b"]  # the one that has had less


def test_a_tenant_at_its_own_cap_displaces_nobody() -> None:
    backends, models = one(1, places=4)
    mesh = Mesh(backends, models, [TenantSpec("capped", max_waiting=1)])
    mesh.offer("flood")
    for _ in range(3):
        mesh.offer("flood")
    mesh.offer("capped")
    refused = mesh.offer("capped")
    assert mesh.refused == {refused: "queue_full"}  # the widest bound is named
    assert not mesh.ended


def test_who_came_back_from_a_backend_is_never_displaced() -> None:
    mesh = Mesh(*one(2, places=2))
    back = [mesh.offer("a"), mesh.offer("a")]
    waiting = [mesh.offer("a"), mesh.offer("a")]
    mesh.apply(mesh.admission.cordon("b", True, 0))
    for request in back:
        mesh.requeue(request, full=False)
    mesh.apply(mesh.admission.cordon("b", False, 0))
    assert all(request in mesh.running for request in back)
    mesh.apply(mesh.admission.resize("b", 0, 0))
    for request in back:
        mesh.requeue(request, full=False)
    assert mesh.line().total == 4
    mesh.offer("c")
    assert mesh.ended == {waiting[1]: "displaced"}
    mesh.offer("d")
    assert list(mesh.ended.values()) == ["displaced"] or waiting[0] in mesh.ended
    assert all(request in mesh.waiting for request in back)


def test_the_process_bound_is_shared_over_all_lines() -> None:
    mesh = Mesh(
        [BackendSpec("b", 1), BackendSpec("c", 1)],
        [ModelSpec("m", ("b",), max_waiting=9), ModelSpec("n", ("c",), max_waiting=9)],
        limits=Limits(max_waiting_total=6),
    )
    flood = [mesh.offer("flood", model) for model in "mnmnmnmn"]
    assert len(mesh.waiting) == 6
    small = mesh.offer("small", "n")
    running = mesh.offer("small", "n")
    assert small.state is RequestState.WAITING
    assert running.state is RequestState.WAITING
    assert [request for request in flood if request in mesh.ended] == flood[-2:]


def test_a_hopeless_newcomer_displaces_nobody() -> None:
    mesh = Mesh(*one(1, places=4))
    for _ in range(25):
        request = mesh.offer("a")
        mesh.tick(10)
        mesh.finish(request)
    mesh.offer("a")
    for _ in range(3):
        mesh.offer("a")
    mesh.offer("c")
    assert mesh.refused[mesh.offer("c", ttl_s=1)] in ("deadline_unreachable", "queue_full")
    assert not [cause for cause in mesh.ended.values() if cause == "displaced"]
