"""Sharing places: amounts, shares, and the tenant with the most, against a naive count."""

from __future__ import annotations

import random

import pytest

from inferencemesh.core.line import Line
from inferencemesh.core.model import ModelSpec, TenantSpec
from inferencemesh.core.places import Places
from inferencemesh.core.request import Request, RequestState
from inferencemesh.core.tenant import Tenant


def tenant(name: str, weight: float = 1.0) -> Tenant:
    return Tenant(TenantSpec(name, weight), configured=False)


@pytest.mark.parametrize("seed", range(5))
def test_the_most_is_the_most_whatever_came_and_went(seed: int) -> None:
    rng = random.Random(seed)
    tenants = [tenant(f"t{index}", rng.choice([0.5, 1.0, 3.0])) for index in range(12)]
    places = Places()
    naive: dict[Tenant, int] = {}
    for _ in range(3000):
        who = rng.choice(tenants)
        if rng.random() < 0.5:
            amount = rng.choice([1, 1, 7])
            places.add(who, amount)
            naive[who] = naive.get(who, 0) + amount
        elif naive.get(who):
            amount = naive[who] if rng.random() < 0.3 else 1
            places.remove(who, amount)
            naive[who] -= amount
            if not naive[who]:
                del naive[who]
        assert places.amounts == naive
        assert places.total == sum(naive.values())
        assert places.weights == pytest.approx(sum(t.weight for t in naive))
        if rng.random() < 0.3:
            most = places.most()
            best = max((held / t.weight for t, held in naive.items()), default=None)
            assert (most is None) == (best is None)
            if most is not None and best is not None:
                assert naive[most] / most.weight == best
        if places._heap is not None:
            assert len(places._heap) <= 200 + 4 * len(naive)


def test_among_equals_the_one_that_has_had_most_service() -> None:
    places = Places()
    first, second, third = tenant("a"), tenant("b"), tenant("c")
    first.standing, second.standing, third.standing = 5, 9, 7
    for who in (first, second, third):
        places.add(who, 2)
    assert places.most() is second


def test_shares_include_the_newcomer() -> None:
    places = Places()
    heavy, light = tenant("heavy", 3.0), tenant("light")
    places.add(heavy, 10)
    assert places.share_per_weight(light, 16) * light.weight == 4.0
    assert places.share_per_weight(heavy, 16) * heavy.weight == 16.0


def line_of(count: int) -> tuple[Line, Tenant, list[Request]]:
    line = Line(ModelSpec("m", ("b",)))
    who = tenant("t")
    requests = []
    for number in range(count):
        request = Request("r", "t", "m", class_offset_s=float(number % 2), arrived_at=0, deadline_at=1)
        request.state = RequestState.WAITING
        request._seq = number
        line.enter(request, who)
        requests.append(request)
    return line, who, requests


def test_the_newest_waiter_is_found_past_those_who_left() -> None:
    line, who, requests = line_of(10)
    for index in (9, 8, 3):
        line.leave(requests[index])
    assert line.tenants[who].newest() is requests[7]
    assert line.tenants[who].ahead(0.0) == 4  # classes: 0, 2, 4, 6 (8 has left)
    assert line.tenants[who].ahead(1.0) == 7
    for index in (0, 1, 2, 4, 5, 6, 7):
        line.leave(requests[index])
    assert not line.tenants
    assert not who.lines
    assert line.places.weights == 0.0


def test_the_automatic_bound() -> None:
    line = Line(ModelSpec("m", ("b",)))
    assert line.limit(8, 10.0) == 4
    assert line.limit(8, 0.1) == 32
    assert line.limit(1, 100.0) == 1
    assert line.limit(3, 10.0) == 2  # rounded up
    assert Line(ModelSpec("m", ("b",), max_waiting=0)).limit(8, 10.0) == 0


def test_contested_places_remember_no_more_than_who_has_some() -> None:
    """However much comes and goes before anybody asks again who has the most."""
    places = Places()
    crowd = [Tenant(TenantSpec(f"t{number}"), configured=True) for number in range(4)]
    for who in crowd:
        places.add(who, 5)
    assert places.most() is not None
    for _ in range(500):
        for who in crowd:
            places.remove(who, 1)
            places.add(who, 1)
    assert places._heap is not None
    assert len(places._heap) <= 2 * len(crowd) + 33
    places.add(crowd[2], 1)
    assert places.most() is crowd[2]


def test_who_is_spared_is_passed_over_and_not_forgotten() -> None:
    places = Places()
    crowd = [Tenant(TenantSpec(f"t{number}"), configured=True) for number in range(4)]
    for number, tenant in enumerate(crowd):
        places.add(tenant, 4 - number)
    assert places.most(lambda tenant: tenant is crowd[0]) is crowd[1]
    assert places.most(lambda tenant: tenant in crowd[:3]) is crowd[3]
    assert places.most(lambda tenant: True) is None
    assert places.most() is crowd[0]
    places.remove(crowd[0], 4)
    assert places.most() is crowd[1]
