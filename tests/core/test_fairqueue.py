"""The fair queue alone, against a naive scan over all tenants: the same choices (contract D3, D6, D7)."""

from __future__ import annotations

import random
from typing import cast

import pytest

from inferencemesh.core.fairqueue import FairQueue
from inferencemesh.core.flow import Need
from inferencemesh.core.model import BackendSpec, BreakerSpec, TenantSpec
from inferencemesh.core.request import Request
from inferencemesh.core.served import Served
from inferencemesh.core.slots import Backend
from inferencemesh.core.tenant import SCALE, Tenant

SOMEWHERE = Backend(BackendSpec("b", 1), BreakerSpec())


class Model:
    """All that the queue wants of a model: a name and an identity, and where to keep its commonest need."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.narrow: Need | None = None
        self.reach = 0  # all have the same backends


class Bench:
    """A queue, requests, and which needs can be served."""

    def __init__(self, names: int = 6, *, models: int = 2, seed: int = 0) -> None:
        rng = random.Random(seed)
        self.queue = FairQueue()
        self.models = [cast(Served, Model(f"m{index}")) for index in range(models)]
        self.tenants = [
            Tenant(TenantSpec(f"t{index}", rng.choice([1.0, 2.0, 5.0])), configured=True)
            for index in range(names)
        ]
        self.number = 0
        self.waiting: dict[Request, tuple[Tenant, Served]] = {}
        self.blocked: set[tuple[str, int]] = set()

    def add(self, who: Tenant, model: Served, *, width: int = 1, order: float | None = None) -> Request:
        self.number += 1
        request = Request("r", who.name, model.name, width, arrived_at=0, deadline_at=1)
        request._seq = self.number
        request._order = float(self.number) if order is None else order
        self.queue.add(request, model, who)
        self.waiting[request] = (who, model)
        return request

    def servable(self, need: Need) -> bool:
        can = (need.model.name, need.width) not in self.blocked
        need.backend = cast(Backend, self) if can else None
        return can

    def take(self) -> Request | None:
        lane = self.queue.winner(self.servable)
        if lane is None:
            return None
        request = lane.head()
        flow = lane.flow
        key = flow.service + lane.offset
        self.queue.remove(request)
        self.queue.hold(flow)
        self.queue.charge(flow, request.width, key, SOMEWHERE)
        del self.waiting[request]
        return request

    def naive(self) -> Request | None:
        """The least (virtual service, arrival of the first that could be served), by looking at everything."""
        firsts: dict[Tenant, Request] = {}
        for request, (who, model) in self.waiting.items():
            if who.parked or (model.name, request.width) in self.blocked:
                continue
            first = firsts.get(who)
            if first is None or (request._order, request._seq) < (first._order, first._seq):
                firsts[who] = request
        flows = self.queue.flows
        return min(
            firsts.values(),
            key=lambda request: (flows[self.waiting[request][0]].service, request._seq),
            default=None,
        )


@pytest.mark.parametrize("seed", range(12))
def test_it_chooses_like_a_scan_over_everything(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(seed=seed)
    queue = bench.queue
    taken: list[Request] = []
    for _ in range(1500):
        what = rng.random()
        if what < 0.45:
            bench.add(
                rng.choice(bench.tenants),
                rng.choice(bench.models),
                width=rng.choice([1, 1, 2]),
                order=bench.number + rng.choice([0.0, 0.0, 9.0]),
            )
        elif what < 0.55 and bench.waiting:
            request = rng.choice(list(bench.waiting))
            lane = request._lane
            assert lane is not None
            queue.remove(request)
            del bench.waiting[request]
            if lane.flow.idle:
                queue.rest(lane.flow)
        elif what < 0.6:
            bench.blocked = {(f"m{rng.randrange(2)}", rng.choice([1, 2])) for _ in range(rng.randrange(4))}
        elif what < 0.65:
            who = rng.choice(bench.tenants)
            who.parked = not who.parked
            flow = queue.flows.get(who)
            if flow is not None:
                (queue.park if who.parked else queue.unpark)(flow)
        elif what < 0.7 and taken:
            flow = queue.flows.get(next(t for t in bench.tenants if t.name == taken[-1].tenant))
            if flow is not None and flow.held:
                queue.correct(flow, -1, SOMEWHERE)  # a grant was undone
        else:
            expected = bench.naive()
            before = queue.v
            chosen = bench.take()
            assert chosen is expected
            assert queue.v >= before
            if chosen is not None:
                taken.append(chosen)
        while len(taken) > 6:
            who = next(t for t in bench.tenants if t.name == taken[0].tenant)
            queue.unhold(queue.flows[who])
            del taken[0]


def test_service_is_exact_whatever_the_weight() -> None:
    queue = FairQueue()
    who = Tenant(TenantSpec("t", 3.0), configured=True)
    flow = queue.flow(who)
    start = flow.service
    for _ in range(1000):
        queue.charge(flow, 1, flow.service, SOMEWHERE)
    for _ in range(1000):
        queue.correct(flow, -1, SOMEWHERE)
    assert flow.service == start
    assert who.charged == 0


def test_who_begins_to_wait_is_lifted_to_virtual_time() -> None:
    bench = Bench(2, models=1)
    busy, idle = bench.tenants
    model = bench.models[0]
    bench.add(idle, model)
    bench.take()
    for _ in range(30):
        bench.add(busy, model)
    for _ in range(20):
        bench.take()
    bench.add(idle, model)
    flow = bench.queue.flows[idle]
    assert flow.service >= bench.queue.v > 10 * busy.step
    assert bench.take() is not None


def test_idle_flows_are_forgotten_when_virtual_time_has_passed_them() -> None:
    dropped: list[Tenant] = []
    queue = FairQueue(dropped=dropped.append)
    names = [Tenant(TenantSpec(f"t{index}"), configured=False) for index in range(3)]
    flows = [queue.flow(who) for who in names]
    for flow in flows:
        queue.hold(flow)
    queue.charge(flows[0], 1, 0, SOMEWHERE)
    queue.unhold(flows[0])
    assert queue.flows.get(names[0]) is flows[0]  # it is ahead of V
    queue.charge(flows[1], 1, 2 * SCALE, SOMEWHERE)  # V moves past it
    assert dropped == [names[0]]
    queue.unhold(flows[1])
    queue.unhold(flows[2])
    assert not queue.flows  # the end of a busy period
    assert set(dropped) == set(names)
    assert queue.v >= 2 * SCALE


def test_the_number_of_remembered_idle_tenants_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferencemesh.core.standings._MAX_RESTING", 20)
    queue = FairQueue()
    keeper = queue.flow(Tenant(TenantSpec("keeper"), configured=True))
    queue.hold(keeper)
    for number in range(100):
        flow = queue.flow(Tenant(TenantSpec(f"t{number}"), configured=False))
        queue.hold(flow)
        queue.charge(flow, 1, 0, SOMEWHERE)  # each newcomer starts at V, so V does not move
        queue.unhold(flow)
    assert len(queue.flows) <= 22
