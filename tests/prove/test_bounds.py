"""The bounds that the scheduler promises, as theorems: no random system exceeds them, and some come close.

N slots, non-preemptive. D_i: what was charged to tenant i at dispatch, F_i its virtual service, n_i its slots, e the
charge at dispatch, C the longest request. A bound with equality allowed is exact; that one comes near to it shows that
the test could fail.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import combinations, permutations

import pytest

from inferencemesh.core.charge import Arrival, PerHeldSlot, PerSlot
from inferencemesh.core.fairness import policy_of
from inferencemesh.core.metered import LEAST_S, SlotSeconds, Tokens
from inferencemesh.core.model import FairnessSpec
from tests.prove.systems import Actor, System

PROVE = bool(os.environ.get("PROVE"))
CAP_S = 8.0
EPSILON = 1e-6
SEEDS = range(400 if PROVE else 40)
GRANTS = 1500 if PROVE else 400


def lasting(rng: random.Random) -> Callable[[random.Random], float]:
    """How long one tenant's requests last: at most C."""
    kind = rng.choice(["uniform", "mostly short", "long", "short", "constant"])
    constant = rng.uniform(0.3, CAP_S)
    return {
        "uniform": lambda r: r.uniform(LEAST_S, CAP_S),
        "mostly short": lambda r: CAP_S if r.random() < 0.2 else r.uniform(LEAST_S, 1.0),
        "long": lambda r: CAP_S,
        "short": lambda r: LEAST_S,
        "constant": lambda r: constant,
    }[kind]


def random_actors(rng: random.Random, *, comes_and_goes: bool = True, caps: bool = False) -> list[Actor]:
    actors = []
    for number in range(rng.randint(2, 5)):
        there: tuple[tuple[float, float], ...] = ((0.0, float("inf")),)
        if comes_and_goes and number:
            times = sorted(rng.uniform(0.0, 120.0) for _ in range(4))
            there = ((times[0], times[1]), (times[2], float("inf")))
        cap = rng.choice([None, None, 1, 2]) if caps else None
        weight = rng.choice([1.0, 1.0, 2.0, 3.5, 10.0])
        actors.append(Actor(f"t{number}", weight, lasting(rng), there, max_running=cap))
    return actors


def random_slots(rng: random.Random) -> int:
    return rng.choice([1, 2, 3, 4, 8, 16, 32])


def worst(systems: Iterable[float]) -> float:
    return max(systems)


# --- B1 -----------------------------------------------------------------------------------------------------------


def b1(seed: int) -> float:
    """The largest |D_i/w_i - D_j/w_j| / (e/w_i + e/w_j) over any interval of both being backlogged."""
    rng = random.Random(seed)
    spans: dict[tuple[str, str], list[float]] = {}
    seen = 0
    ratio = 0.0

    def look(system: System) -> None:
        nonlocal seen, ratio
        ready = system.counters()
        for pair in [pair for pair in spans if not all(name in ready for name in pair)]:
            del spans[pair]
        for grant in system.dispatched[seen:]:
            for (one, other), span in spans.items():
                if grant.tenant in (one, other):
                    step = 1.0 / system.weight(grant.tenant)
                    span[0] += step if grant.tenant == one else -step
                    span[1], span[2] = min(span[1], span[0]), max(span[2], span[0])
                    bound = 1.0 / system.weight(one) + 1.0 / system.weight(other)
                    ratio = max(ratio, (span[2] - span[1]) / bound)
        seen = len(system.dispatched)
        for pair in combinations(sorted(ready), 2):
            spans.setdefault(pair, [0.0, 0.0, 0.0])

    System(random_slots(rng), random_actors(rng), PerSlot(), seed, look).run(GRANTS)
    return ratio


def test_B1_charges_at_dispatch_differ_by_one_charge_each_whatever_the_number_of_slots() -> None:
    ratio = worst(b1(seed) for seed in SEEDS)
    assert 0.99 <= ratio <= 1.0 + EPSILON


# --- B2 -----------------------------------------------------------------------------------------------------------


def b2(seed: int, *, e: float = CAP_S / 2) -> float:
    """The largest |F_i - F_j| / (e/w_i + max over n_i + n_j <= N of n_i (C-e)/w_i + n_j e/w_j), both backlogged."""
    rng = random.Random(seed)
    slots = random_slots(rng)
    ratio = 0.0

    def look(system: System) -> None:
        nonlocal ratio
        counters = system.counters()
        for one, other in permutations(counters, 2):
            mine, theirs = system.weight(one), system.weight(other)
            bound = e / mine + slots * max((CAP_S - e) / mine, e / theirs)
            ratio = max(ratio, (counters[one] - counters[other]) / bound)

    caps = rng.random() < 0.3
    System(slots, random_actors(rng, caps=caps), SlotSeconds(fixed_s=CAP_S), seed, look).run(GRANTS)
    return ratio


def test_B2_counters_stay_close_with_instalments_and_corrections() -> None:
    ratio = worst(b2(seed) for seed in SEEDS)
    assert 0.9 <= ratio <= 1.0 + EPSILON


def test_B2_true_service_stays_within_its_budget() -> None:
    """No theorem but a budget: of slot-seconds by weight no backlogged tenant gains 0.75 N C on another (0.69 seen)."""

    def gap(seed: int) -> float:
        rng = random.Random(seed)
        slots = rng.choice([8, 16, 32])
        actors = [Actor(f"t{n}", w, lasting(rng)) for n, w in enumerate((1.0, 1.0, 2.0))]
        worst_gap = 0.0
        base: list[float] = []

        def look(system: System) -> None:
            nonlocal worst_gap
            if system.now <= CAP_S:  # the first to come had all slots: they were free
                return
            service: dict[str, float] = defaultdict(float, system.served_s)
            for lease in system.open:
                service[lease.request.tenant] += system.now - lease.granted_at
            shares = [service[actor.name] / actor.weight for actor in actors]
            if not base:
                base.extend(shares)
            shares = [share - at_first for share, at_first in zip(shares, base, strict=True)]
            worst_gap = max(worst_gap, (max(shares) - min(shares)) / (slots * CAP_S))

        System(slots, actors, SlotSeconds(fixed_s=CAP_S), seed, look).run(GRANTS)
        return worst_gap

    assert worst(gap(seed) for seed in SEEDS) <= 0.75


# --- B3 -----------------------------------------------------------------------------------------------------------


def b3(seed: int) -> tuple[float, float]:
    """The largest (n_i/w_i - n_j/w_j) w_i, no slot free: with nobody newly eligible for C, and with newcomers."""
    rng = random.Random(seed)
    settled = anyhow = 0.0

    def look(system: System) -> None:
        nonlocal settled, anyhow
        if len(system.open) < system.slots:
            return
        held = system.held()
        calm = system.now - system.last_join_at > CAP_S
        for one, other in permutations(system.counters(), 2):
            mine, theirs = system.weight(one), system.weight(other)
            excess = (held[one] / mine - held[other] / theirs) * mine
            anyhow = max(anyhow, excess)
            if calm:
                settled = max(settled, excess)

    System(random_slots(rng), random_actors(rng), PerHeldSlot(), seed, look).run(GRANTS)
    return settled, anyhow


def test_B3_fewest_slots_first_shares_the_slots_themselves() -> None:
    ratios = [b3(seed) for seed in SEEDS]
    assert 0.9 <= worst(settled for settled, _ in ratios) <= 1.0 + EPSILON
    assert worst(anyhow for _, anyhow in ratios) > 1.0  # the condition on newcomers is needed


# --- starvation, idleness, conservation ---------------------------------------------------------------------------


def starvation(seed: int) -> float:
    """The largest part of the allowed dispatches of others that a head saw before its own."""
    rng = random.Random(seed)
    slots = random_slots(rng)
    e = CAP_S / 2
    heads: dict[str, tuple[str, int, float]] = {}
    seen = 0
    ratio = 0.0

    def look(system: System) -> None:
        nonlocal seen, ratio
        queue = system.admission._state.pools[0].queue
        counters, virtual = system.counters(), system.virtual
        passed: dict[str, int] = defaultdict(int)
        for grant in system.dispatched[seen:]:
            passed[grant.tenant] += 1
        seen = len(system.dispatched)
        firsts = {}
        for tenant, flow in queue.flows.items():
            if tenant.name in counters:
                firsts[tenant.name] = min(lane.head() for lane in flow.lanes.values() if lane.live).id  # type: ignore[type-var]
        for name, (head, others, allowed) in list(heads.items()):
            others += sum(n for tenant, n in passed.items() if tenant != name)
            ratio = max(ratio, others / allowed)
            heads[name] = (head, others, allowed)
            if firsts.get(name) != head:
                del heads[name]
        for name, head in firsts.items():
            if name not in heads:
                # It rises by the instalments of what runs, while the head waits.
                mine = system.weight(name)
                ahead = max(counters[name] - virtual, e / mine + slots * (CAP_S - e) / mine)
                allowed = sum(
                    (system.weight(other) * max(0.0, ahead) + e + slots * e) / LEAST_S
                    for other in system.actor
                    if other != name
                )
                heads[name] = (head, 0, allowed)

    System(slots, random_actors(rng), SlotSeconds(fixed_s=CAP_S), seed, look).run(GRANTS)
    return ratio


def test_no_head_is_passed_more_often_than_service_allows() -> None:
    assert 0.0 < worst(starvation(seed) for seed in SEEDS) <= 1.0 + EPSILON


@pytest.mark.parametrize("unit", ["requests", "slot_seconds"])
def test_idleness_buys_nothing(unit: str) -> None:
    """10: who comes back after a long time stands at V, and is served beside the other and not before it."""
    for seed in SEEDS:
        rng = random.Random(seed)
        slots = random_slots(rng)
        back_at = rng.uniform(50.0, 500.0)
        actors = [
            Actor("busy", 1.0, lasting(rng)),
            Actor("idle", 1.0, lasting(rng), ((0.0, 10.0), (back_at, float("inf")))),
        ]
        policy = PerSlot() if unit == "requests" else SlotSeconds(fixed_s=CAP_S)
        system = System(slots, actors, policy, seed).run(10**6, until=back_at - 1e-6)
        before, virtual = len(system.dispatched), system.virtual
        system.run(10**6, until=back_at)
        assert system.counters()["idle"] >= virtual
        charge = 1.0 if unit == "requests" else CAP_S / 2
        allowed = 2.0 + (0.0 if unit == "requests" else slots)  # B1; with corrections B2 over e
        system.run(before + 200)
        ahead = 0
        for grant in system.dispatched[before:]:
            ahead += 1 if grant.tenant == "idle" else -1
            if unit == "requests":
                assert ahead * charge <= allowed * charge + EPSILON, seed


def test_9_what_was_charged_is_what_it_cost_and_what_is_open() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)

        def look(system: System) -> None:
            snapshot = system.admission.snapshot(system.now)
            for view in snapshot.tenants:
                ended = system.served_s[view.name]
                charged = sum(lease._charged for lease in system.open if lease.request.tenant == view.name)
                assert abs(view.service - ended - charged) < 1e-6 * max(1.0, ended)

        actors = random_actors(rng, comes_and_goes=False)
        System(random_slots(rng), actors, SlotSeconds(fixed_s=CAP_S), seed, look).run(200)


def test_13_forgetting_idle_tenants_changes_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same arrivals and ends with and without it."""
    from inferencemesh.core.fairqueue import FairQueue

    def grants(seed: int) -> list[tuple[str, float]]:
        rng = random.Random(seed)
        system = System(random_slots(rng), random_actors(rng), SlotSeconds(fixed_s=CAP_S), seed)
        return [(grant.tenant, grant.at) for grant in system.run(GRANTS).dispatched]

    forgetful = [grants(seed) for seed in SEEDS]
    monkeypatch.setattr(FairQueue, "_drop", lambda self, flow: None)
    assert [grants(seed) for seed in SEEDS] == forgetful


# --- shares ---------------------------------------------------------------------------------------------------------


SHORT, LONG = (lambda r: r.uniform(0.5, 1.5)), (lambda r: r.uniform(4.0, 12.0))


@pytest.mark.parametrize("unit", ["requests", "slot_seconds", "tokens"])
def test_D3_shares_are_within_3_percent_of_the_weights(unit: str) -> None:
    """10,000 requests of three backlogged tenants: one short and one long of weight 1, a long one of weight 2."""
    actors = [Actor("a", 1.0, SHORT), Actor("b", 1.0, LONG), Actor("c", 2.0, LONG)]
    per_s = {"a": 80.0, "b": 20.0, "c": 40.0}
    system = System(
        16,
        actors,
        policy_of(FairnessSpec(unit=unit)),
        tokens=lambda name, lasted: round(lasted * per_s[name]),
    ).run(10_000)
    service = {
        "requests": {name: float(n) for name, n in system.served.items()},
        "slot_seconds": dict(system.served_s),
        "tokens": {name: float(n) for name, n in system.served_tokens.items()},
    }[unit]
    total = sum(service.values())
    for actor in actors:
        due = actor.weight / 4.0
        assert abs(service[actor.name] / total - due) <= 0.03 * due, (actor.name, service)


def light_beside_a_flood(
    policy: PerSlot | SlotSeconds | Tokens | PerHeldSlot | Arrival, seed: int = 1
) -> list[int]:
    """How many slots were released before each request of a tenant that asks for one at a time, now and then."""
    system = System(
        8,
        [
            Actor("flood", 1.0, lambda r: r.lognormvariate(1.0, 1.0), backlog=50),
            Actor("light", 1.0, SHORT, there=()),
        ],
        policy,
        seed,
    )
    system.tokens = lambda name, lasted: round(lasted * 50)
    rng = random.Random(seed)
    system.run(200)
    for _ in range(400):
        system.offer("light")
        while system.waiting["light"] or any(lease.request.tenant == "light" for lease in system.open):
            system.run(len(system.dispatched) + 1)
        system.run(len(system.dispatched) + rng.randint(1, 20))
    return sorted(grant.releases_waited for grant in system.dispatched if grant.tenant == "light")


@pytest.mark.parametrize("unit", ["requests", "slot_seconds", "tokens"])
def test_D5_a_light_tenant_waits_for_the_next_release_and_not_for_the_line(unit: str) -> None:
    waits = light_beside_a_flood(policy_of(FairnessSpec(unit=unit)))  # type: ignore[arg-type]
    assert len(waits) == 400
    assert waits[int(0.95 * len(waits))] <= 1.5, waits
    assert light_beside_a_flood(Arrival())[200] > 40  # in order of arrival it waits for the whole line


def rarely(length_s: float) -> Callable[[random.Random], float]:
    """About a second, and once in 500 times very long."""
    return lambda r: length_s if r.random() < 0.002 else r.uniform(0.5, 1.5)


def once(length_s: float) -> Callable[[random.Random], float]:
    """About a second, but for one request that is very long."""
    lengths = iter([length_s])
    return lambda r: next(lengths, 0.0) or r.uniform(0.5, 1.5)


FLOODS: dict[str, Callable[[], Callable[[random.Random], float]]] = {
    "rarely long": lambda: rarely(60.0),
    "once long": lambda: once(60.0),
    "once very long": lambda: once(300.0),
    "heavy tail": lambda: lambda r: r.lognormvariate(0.7, 1.2),
}


@pytest.mark.parametrize("unit", ["slot_seconds", "tokens"])
@pytest.mark.parametrize("slots", [8, 64])
@pytest.mark.parametrize("kind", FLOODS)
def test_D5_holds_however_unlike_each_other_the_requests_of_the_flood_are(
    kind: str, slots: int, unit: str
) -> None:
    """What is given back of charges must not put who comes then behind the flood, until it has made up for it."""
    flood = Actor("flood", 1.0, FLOODS[kind](), backlog=2 * slots)
    light = Actor("light", 1.0, SHORT, there=())
    system = System(slots, [flood, light], policy_of(FairnessSpec(unit=unit)), 1)
    system.tokens = lambda name, lasted: round(lasted * 50)
    for at in range(20, 620 if PROVE else 370, 2):
        system.run(10**9, until=float(at))
        if not (system.waiting["light"] or any(lease.request.tenant == "light" for lease in system.open)):
            system.offer("light")
    waits = sorted(grant.releases_waited for grant in system.dispatched if grant.tenant == "light")
    assert len(waits) > 100
    assert waits[int(0.95 * len(waits))] <= 1.5, waits
    assert waits[-1] <= 3, waits


@pytest.mark.parametrize("at", [1.0, 3.0, 10.0])
def test_D5_holds_while_nothing_is_known_of_costs(at: float) -> None:
    """Right after a start: what is believed then must not put a newcomer behind the refunds of the first."""
    flood = Actor("flood", 1.0, lambda r: r.uniform(0.2, 0.6), backlog=50)
    system = System(8, [flood, Actor("light", 1.0, SHORT, there=())], SlotSeconds(), 1)
    system.run(10**9, until=at)
    system.offer("light")
    system.run(10**9, until=at + 15.0)
    (waited,) = [grant.releases_waited for grant in system.dispatched if grant.tenant == "light"]
    assert waited <= 2
