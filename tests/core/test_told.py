"""What a refused caller is told of the wait that it would have had (contract A10), where limits make it longer."""

from __future__ import annotations

import random

import pytest

from inferencemesh.core.admission import Admission, Refusal, Refused
from inferencemesh.core.model import BackendSpec, ClassSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Request

DONE = Outcome(Phase.COMPLETE, "ok")
SLOTS = 4


class World:
    """Four slots, and a model whose requests are known to last a second; three places."""

    def __init__(self, *, tenant_limit: int | None = None, class_limit: int | None = None) -> None:
        own = (ModelSpec("m", ("b",), max_waiting=3, queue_timeout_s=1e6, refuse_hopeless=False),)
        self.admission = Admission(
            [BackendSpec("b", SLOTS)],
            own,
            [TenantSpec("a"), TenantSpec("b", max_running=tenant_limit)],
            Limits(),
            rng=random.Random(1),
            classes=[ClassSpec("batch", max_running=class_limit)],
        )
        self.now = 0.0
        self.number = 0
        for _ in range(40):
            request = self.offer("a")
            assert isinstance(request, Request)
            self.now += 1.0
            assert request.lease is not None
            self.admission.release(request.lease, self.now)
            self.admission.settle(request, DONE, self.now)

    def offer(self, tenant: str, *, width: int = 1, class_name: str = "") -> Request | Refusal:
        self.number += 1
        request = Request(
            str(self.number), tenant, "m", width, arrived_at=self.now, deadline_at=1e9, class_name=class_name
        )
        for effect in self.admission.offer(request, self.now):
            if isinstance(effect, Refused):
                return effect.refusal
        return request

    def refused(self, tenant: str, **more: object) -> Refusal:
        """Offer until one is refused."""
        while True:
            answer = self.offer(tenant, **more)  # type: ignore[arg-type]
            if isinstance(answer, Refusal):
                return answer


def test_without_limits_it_is_the_speed_of_the_line() -> None:
    told = World().refused("b")
    assert told.code == "queue_full"
    assert told.place == 4
    assert told.estimate_s == pytest.approx(4 / SLOTS, rel=0.1)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_tenant_that_may_hold_fewer_slots_waits_for_those(limit: int) -> None:
    world = World(tenant_limit=limit)
    told = world.refused("b")
    assert told.code == "queue_full"
    assert told.estimate_s == pytest.approx(4 / limit, rel=0.1)
    free = World().refused("b")
    assert told.retry_after_s > free.retry_after_s


def test_a_class_that_may_hold_fewer_slots_waits_for_those() -> None:
    told = World(class_limit=1).refused("b", class_name="batch")
    assert told.estimate_s == pytest.approx(4.0, rel=0.1)


def test_the_narrower_limit_counts() -> None:
    told = World(tenant_limit=1, class_limit=2).refused("b", class_name="batch")
    assert told.estimate_s == pytest.approx(4.0, rel=0.1)


def test_a_wide_request_waits_for_as_many_slots() -> None:
    world = World()
    world.offer("a", width=4)
    told = world.refused("b", width=4)
    assert told.estimate_s == pytest.approx(4 * 4 / SLOTS, rel=0.1)
