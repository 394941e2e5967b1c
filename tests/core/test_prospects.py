"""At which pace the waiters of one class are granted: measured, presumed, and seen to be less than presumed."""

from __future__ import annotations

import random

import pytest

from inferencemesh.core.admission import Admission, Queued, Refused
from inferencemesh.core.charge import PerSlot
from inferencemesh.core.estimate import Pace
from inferencemesh.core.metered import SlotSeconds
from inferencemesh.core.model import BackendSpec, ClassSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.request import Request
from tests.prove.floods import DONE


def test_a_pace_that_was_measured_counts_alone() -> None:
    pace = Pace()
    pace.enter(0.0)
    for second in range(1, 21):
        pace.granted(float(second))
    assert pace.per_s(20.0, 100.0) == pytest.approx(1.0, rel=0.05)
    pace.leave(20.0)
    assert pace.per_s(500.0, 100.0) == pytest.approx(1.0, rel=0.05), "nobody waits: nothing is measured"


def test_what_is_presumed_counts_until_less_is_seen() -> None:
    pace = Pace()
    assert pace.per_s(0.0, 2.0) == 2.0
    pace.enter(0.0)
    assert pace.per_s(0.4, 2.0) == 2.0
    assert pace.per_s(10.0, 2.0) < 0.12, "ten seconds, and nobody was granted"
    pace.granted(10.0)
    assert pace.per_s(10.0, 2.0) < 0.25


def test_an_old_pace_fades() -> None:
    pace = Pace()
    pace.enter(0.0)
    for tenth in range(100):
        pace.granted(tenth / 10)
    before = pace.per_s(10.0, 1.0)
    assert before == pytest.approx(10.0, rel=0.1)
    assert pace.per_s(60.0, 1.0) < 0.5 * before, "nobody was granted since"


def test_classes_without_line_limit_or_rank_have_no_pace_of_their_own() -> None:
    def paces(*classes: ClassSpec, floor: float | None = None, own: bool = False) -> list[str]:
        by_class = (("x", ModelSpec("m", ("b",))),) if own else ()
        admission = Admission(
            [BackendSpec("b", 1)],
            [ModelSpec("m", ("b",), by_class=by_class)],
            [TenantSpec("t")],
            Limits(),
            rng=random.Random(1),
            classes=classes,
            floor=floor,
        )
        model = admission._state.models["m"]
        assert (len(model.usual.paces) == 1) == (not model.prospects)
        return list(model.prospects)

    assert paces(ClassSpec("x"), ClassSpec("y")) == []
    assert paces(ClassSpec("x"), ClassSpec("y", 2)) == ["y"]
    assert paces(ClassSpec("x"), ClassSpec("y"), floor=0.1) == ["x", "y"]
    assert paces(ClassSpec("x"), ClassSpec("y", 2), own=True) == ["x", "y"]


@pytest.mark.parametrize(("unit", "longer"), [(SlotSeconds, 4.0), (PerSlot, 1.0)])
def test_a_tenant_whose_requests_last_longer_is_told_so(
    unit: type[SlotSeconds] | type[PerSlot], longer: float
) -> None:
    """In slot-seconds the same share gets it fewer grants; in requests it does not."""
    charge = unit()
    admission = Admission(
        [BackendSpec("b", 1)],
        [ModelSpec("m", ("b",), 8, queue_timeout_s=1e6)],
        [TenantSpec("long"), TenantSpec("short")],
        Limits(),
        rng=random.Random(1),
        charge=charge,
    )
    now = 0.0

    def ask(tenant: str) -> Request:
        return Request("r", tenant, "m", arrived_at=now, deadline_at=now + 1e6)

    for number in range(400):
        tenant, lasts_s = ("long", 8.0) if number % 4 == 0 else ("short", 2.0 / 3.0)
        request = ask(tenant)
        admission.offer(request, now)
        assert request.lease is not None
        now += lasts_s
        admission.release(request.lease, now)
        admission.settle(request, DONE, now)
    admission.offer(ask("short"), now)
    told = {}
    for tenant in ("short", "long"):
        for _ in range(4):
            assert isinstance(admission.offer(ask(tenant), now)[0], Queued)
    for tenant in ("short", "long"):
        effect = next(e for e in admission.offer(ask(tenant), now) if isinstance(e, Refused))
        told[tenant] = effect.refusal.estimate_s or 0.0
    assert told["long"] / told["short"] > 0.8 * longer
