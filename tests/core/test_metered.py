"""Charges in slot-seconds and tokens: half a cap at dispatch, instalments, exact at the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferencemesh.core.admission import Admission, Granted
from inferencemesh.core.charge import ChargePolicy
from inferencemesh.core.costs import Costs
from inferencemesh.core.fairness import policy_of
from inferencemesh.core.metered import LEAST_S, LEAST_TOKENS, PRIOR_S, SlotSeconds, Tokens
from inferencemesh.core.model import BackendSpec, FairnessSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import Lease, Request

DONE = Outcome(Phase.COMPLETE, "ok")
ANY = float("inf")  # the cap may fall at once


class World:
    """Eight slots, one tenant of weight 2; `service` is what has been charged to it."""

    def __init__(self, charge: ChargePolicy) -> None:
        self.admission = Admission(
            [BackendSpec("b", 8)],
            [ModelSpec("m", ("b",))],
            [TenantSpec("t", 2.0), TenantSpec("u")],
            Limits(),
            rng=random.Random(1),
            charge=charge,
        )
        self.count = 0

    def grant(self, now: float, *, width: int = 1, size: int = 0) -> Lease:
        self.count += 1
        request = Request(str(self.count), "t", "m", width, size, arrived_at=now, deadline_at=1e9)
        (effect,) = self.admission.offer(request, now)
        assert isinstance(effect, Granted)
        return effect.lease

    def end(self, lease: Lease, now: float) -> None:
        self.admission.release(lease, now)
        self.admission.settle(lease.request, DONE, now)

    def service(self, now: float) -> float:
        self.admission.check()
        return self.admission.snapshot(now).tenants[0].service


def test_slot_seconds_are_charged_ahead_in_instalments_and_exactly() -> None:
    world = World(SlotSeconds(fixed_s=8.0))
    other = world.grant(0.0)  # so that the busy period does not end
    lease = world.grant(0.0, width=3)
    assert world.service(0.0) == 4.0 + 12.0
    world.admission.expire(4.0)
    assert world.service(4.0) == 16.0
    world.admission.expire(4.1)  # both have outrun half of the cap
    assert world.service(4.1) == 8.0 + 24.0
    world.end(lease, 5.0)
    assert world.service(5.0) == 8.0 + 15.0
    world.admission.expire(20.0)  # several instalments at once
    assert world.service(20.0) == 20.0 + 15.0
    world.admission.expire(20.1)
    assert world.service(20.1) == 24.0 + 15.0
    world.end(other, 21.0)
    assert world.service(21.0) == 21.0 + 15.0


def test_draining_slots_are_paid_for() -> None:
    world = World(SlotSeconds(fixed_s=8.0))
    lease = world.grant(0.0)
    world.admission.drain(lease, 1.0)
    world.admission.settle(lease.request, Outcome(Phase.BEFORE_HEADERS, "client_gone"), 1.0)
    world.admission.confirm(lease, "closed", 31.0)
    assert world.service(31.0) == 31.0


def test_nothing_is_free() -> None:
    world = World(SlotSeconds(fixed_s=8.0))
    for _ in range(4):
        world.end(world.grant(0.0), 0.0)
    assert world.service(0.0) == 4 * LEAST_S


def test_what_a_backend_refuses_as_full_costs_nothing() -> None:
    world = World(SlotSeconds(fixed_s=8.0))
    lease = world.grant(0.0)
    world.admission.requeue(lease, 3.0, full=True)
    assert world.service(3.0) == 0.0


def test_a_failed_try_pays_for_the_slot_that_it_held() -> None:
    world = World(SlotSeconds(fixed_s=8.0))
    lease = world.grant(0.0)
    world.admission.release(lease, 3.0)
    assert world.service(3.0) == 3.0
    again = world.admission.requeue(lease, 3.0, full=False)
    assert isinstance(again[-1], Granted)
    assert world.service(3.0) == 3.0 + 4.0
    second = again[-1].lease
    world.admission.drain(second, 4.0)
    third = world.admission.requeue(second, 4.0, full=False)[-1]
    assert isinstance(third, Granted)
    assert world.service(4.0) == 3.0 + 8.0
    world.admission.confirm(second, "closed", 9.0)
    world.end(third.lease, 9.0)
    assert world.service(9.0) == 3.0 + 6.0 + 5.0


@given(
    granted_at=st.floats(0, 1e6),
    fixed_s=st.floats(0.1, 600),
    width=st.integers(1, 64),
    after_s=st.floats(0, 1e5),
)
def test_what_has_paid_is_not_due_again_at_once(
    granted_at: float, fixed_s: float, width: int, after_s: float
) -> None:
    """Else the books would be looked at for ever in one step."""
    policy = SlotSeconds(fixed_s=fixed_s)
    world = World(policy)
    lease = world.grant(0.0)
    lease.granted_at = granted_at
    lease.width = width
    now = granted_at + after_s
    charged = policy.at_dispatch(lease.request) * width
    charged += policy.instalment(lease, charged, now)
    assert policy.due_at(lease, charged, now) >= now


def test_the_cap_is_learned_and_is_never_above_the_limit() -> None:
    policy = SlotSeconds(100.0)
    assert policy.cap_s("m", "t") == 2 * PRIOR_S
    world = World(policy)
    now = 0.0
    for number in range(3000):
        lease = world.grant(now)
        now += 500.0 if number % 500 == 499 else 2.0
        world.end(lease, now)
    assert policy.cap_s("m", "t") == 100.0  # one in 500 is above it: C follows them, up to the limit
    for _ in range(20_000):
        lease = world.grant(now)
        now += 2.0
        world.end(lease, now)
    assert policy.cap_s("m", "t") == pytest.approx(4.0, rel=0.2)  # twice the mean


def test_tokens_are_guessed_counted_and_corrected() -> None:
    world = World(Tokens(1.0, 4.0))
    lease = world.grant(0.0, size=400)
    ahead = world.service(0.0)
    assert ahead == 100 + 4 * 16
    lease.output_tokens = 900  # events so far
    world.admission.expire(1.0)
    assert world.service(1.0) == ahead
    world.admission.expire(1.1)
    assert world.service(1.1) == 23 * ahead  # the least that is no less than 100 guessed + 4 x 900
    lease.input_tokens, lease.output_tokens = 120, 950
    world.end(lease, 2.0)
    assert world.service(2.0) == 120 + 4 * 950


def test_without_a_report_events_and_bytes_count() -> None:
    world = World(Tokens())
    lease = world.grant(0.0, size=80)
    lease.output_tokens = 7
    world.end(lease, 1.0)
    assert world.service(1.0) == 20 + 2 * 7
    world.end(world.grant(1.0), 1.0)
    assert world.service(1.0) == 34 + LEAST_TOKENS


def test_every_policy_can_be_had() -> None:
    names = {
        (policy, unit): type(policy_of(FairnessSpec(policy, unit))).__name__
        for policy in ("sfq", "slots", "fifo")
        for unit in ("requests", "slot_seconds", "tokens")
    }
    assert names["sfq", "requests"] == "PerSlot"
    assert names["sfq", "slot_seconds"] == "SlotSeconds"
    assert names["sfq", "tokens"] == "Tokens"
    assert {names["slots", unit] for unit in ("requests", "tokens")} == {"PerHeldSlot"}
    assert {names["fifo", unit] for unit in ("requests", "tokens")} == {"Arrival"}
    for wrong in ({"policy": "x"}, {"unit": "x"}, {"output_token_weight": -1.0}, {"floor": 0.0}):
        with pytest.raises(ValueError, match=r"."):
            FairnessSpec(**wrong)


@given(st.lists(st.floats(0.001, 1e5), min_size=1, max_size=300))
def test_the_cap_is_above_all_but_few_and_not_far_above(costs: list[float]) -> None:
    known = Costs(0.001, 1.0)
    for cost in costs:
        known.add(cost, ANY)
    known._renew()
    known._cap = known._due
    above = sum(cost > known.cap for cost in costs)
    assert above <= 0.001 * (len(costs) + 2) + 1e-9
    assert known.cap <= max(max(costs) * 2**0.26, 2 * known.mean) + 1e-9


def test_old_costs_count_less_and_less() -> None:
    known = Costs(0.001, 1.0)
    for _ in range(2000):
        known.add(100.0, ANY)
    assert known.cap >= 100.0
    for _ in range(40_000):
        known.add(1.0, ANY)
    assert known.cap <= 2.5
    assert known.mean == pytest.approx(1.0, rel=0.05)


def test_who_leaves_after_events_pays_for_them_and_for_the_drain() -> None:
    world = World(Tokens())
    lease = world.grant(0.0, size=80)
    lease.output_tokens = 30
    world.admission.drain(lease, 5.0)
    world.admission.settle(lease.request, Outcome(Phase.AFTER_CONTENT, "client_gone"), 5.0)
    world.admission.confirm(lease, "closed", 9.0)
    assert world.service(9.0) == 20 + 2 * 30 + 2 * 4  # four seconds at one a second, as nothing is known


def test_who_leaves_before_anything_is_told_gets_nothing_back() -> None:
    world = World(Tokens())
    lease = world.grant(0.0, size=80)
    ahead = world.service(0.0)
    world.admission.drain(lease, 50.0)
    world.admission.settle(lease.request, Outcome(Phase.BEFORE_CONTENT, "client_gone"), 50.0)
    world.admission.confirm(lease, "closed", 51.0)
    assert world.service(51.0) == ahead


def test_the_cap_falls_slower_than_what_was_charged_ahead_is_used() -> None:
    """Else the refunds of many requests under way would be larger than the charges of the next (D5)."""
    known = Costs(0.001, 1.0)
    known.add(60.0, 0.0)
    high = known.cap
    assert high >= 60.0
    for number in range(1, 2000):
        known.add(1.0, 0.01)
        assert known.cap >= high - 0.01 * number - 1e-9
    for _ in range(10_000):
        known.add(1.0, 0.01)
    assert known.cap <= 2.5


@pytest.mark.parametrize("unit", ["slot_seconds", "tokens"])
def test_a_flood_is_given_back_no_more_than_it_is_charged_anew(unit: str) -> None:
    """However the cap changes: with eight requests under way all the while, service only grows."""
    world = World(policy_of(FairnessSpec(unit=unit)))
    rng = random.Random(3)
    now = 0.0
    running = [(rng.random(), world.grant(0.0)) for _ in range(8)]
    least = 0.0
    for number in range(6000):
        running.sort(key=lambda pair: pair[0])
        now, lease = running.pop(0)
        lease.output_tokens = round(50 * (now - lease.granted_at))
        world.admission.expire(now)
        world.end(lease, now)
        running.append((now + (60.0 if number == 50 else rng.uniform(0.5, 1.5)), world.grant(now)))
        if number % 8 == 0:
            service = world.service(now)
            assert service >= least - 1.0 if unit == "slot_seconds" else service >= least - 100.0
            least = max(least, service)
