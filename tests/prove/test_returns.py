"""What `Retry-After` is worth to callers who do as they are told (A10): in steady overload, and in a rush."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import fmean

import pytest

from inferencemesh.core.model import ClassSpec, ModelSpec, TenantSpec
from tests.prove.callers import Crowd

SHORT_S = 0.01


def lasting(rng: random.Random) -> float:
    """Log-normal, 9.4 s on average."""
    return min(120.0, rng.lognormvariate(2.0, 0.7))


def thinking(mean_s: float) -> Callable[[random.Random], float]:
    return lambda rng: rng.expovariate(1.0 / mean_s) if mean_s else SHORT_S


@pytest.mark.parametrize(
    ("callers", "think_s"),
    [(150, 0.0), (150, 10.0), (150, 30.0), (300, 60.0), (60, 0.0)],
)
def test_nine_of_ten_who_come_back_as_told_are_admitted(callers: int, think_s: float) -> None:
    """32 slots and more callers than slots and places all the while: nobody is asked to come back in vain."""
    crowd = Crowd(1, callers=callers, service_s=lasting, think_s=thinking(think_s))
    told = crowd.run(1200.0, measured_from=300.0)
    assert told.returns > 300  # it was overload
    assert told.kept / told.returns >= 0.9
    line = crowd.admission.snapshot(crowd.now).lines[0]
    assert (
        line.returns_admitted / (line.returns_admitted + line.returns_refused) >= 0.85
    )  # as it counts itself
    busy = told.served * 9.4 / (32 * 1200)
    assert busy > 0.9, "no slot stands free for it"


def test_a_rush_comes_back_in_turns() -> None:
    """600 callers at once: at most a third of the refusals that a constant second would bring."""
    spread = Crowd(1, callers=600, service_s=lasting, think_s=thinking(0.0), times=1, lateness_s=0.5)
    constant = Crowd(
        1,
        callers=600,
        service_s=lasting,
        think_s=thinking(0.0),
        times=1,
        lateness_s=0.5,
        retry_after_s=lambda _: 1.0,
    )
    ours, theirs = spread.run(), constant.run()
    assert ours.served == theirs.served == 600
    assert ours.refusals * 3 <= theirs.refusals
    assert ours.worst <= 8
    assert ours.ended_at <= 1.25 * theirs.ended_at


HALF = ("", "slow")


def of_class(caller: int) -> str:
    return HALF[caller % 2]


def own_line(places: int) -> tuple[tuple[str, ModelSpec], ...]:
    return (("slow", ModelSpec("m", ("b",), max_waiting=places, queue_timeout_s=600.0)),)


def both_come_back(slots_of_slow: int, model: ModelSpec | None = None) -> Crowd:
    """Half of the callers are of a class that may have so many of 32 slots; those of both find their places."""
    crowd = Crowd(
        1,
        callers=150,
        service_s=lasting,
        think_s=thinking(10.0),
        model=model,
        classes=[ClassSpec("slow", slots_of_slow)],
        class_of=of_class,
    )
    crowd.run(1500.0, measured_from=300.0)
    for name in HALF:
        told = crowd.told_of[name]
        assert told.returns > 300
        assert told.kept / told.returns >= 0.85
    return crowd


def test_a_class_is_told_by_its_own_pace() -> None:
    crowd = both_come_back(8)
    for name in HALF:
        told = crowd.told_of[name]
        assert fmean(told.estimates) == pytest.approx(fmean(told.waits), rel=0.4)


def test_a_place_in_a_class_line_is_kept_too() -> None:
    crowd = both_come_back(16, ModelSpec("m", ("b",), queue_timeout_s=600.0, by_class=own_line(16)))
    line = crowd.admission.snapshot(crowd.now).lines[0]
    returns = sum(crowd.told_of[name].returns for name in HALF)
    assert line.returns_admitted + line.returns_refused >= returns, "the class's own line is counted as well"


def test_less_urgent_classes_are_told_what_their_rank_means() -> None:
    """True waits of some 20 s, where the speed of all classes together would have told two."""
    crowd = Crowd(
        1,
        callers=150,
        service_s=lasting,
        think_s=thinking(10.0),
        classes=[ClassSpec("fast"), ClassSpec("slow")],
        floor=0.1,
        class_of=lambda caller: "fast" if caller % 2 else "slow",
    )
    crowd.run(1500.0, measured_from=300.0)
    slow = crowd.told_of["slow"]
    assert fmean(slow.waits) > 10
    assert fmean(slow.estimates) == pytest.approx(fmean(slow.waits), rel=0.4)


@pytest.mark.parametrize("bound", [4, 8])
@pytest.mark.parametrize("of", ["tenant", "line"])
def test_a_place_behind_a_bound_of_the_tenants_own_is_kept(of: str, bound: int) -> None:
    """Three of four returns and more, where every other one came in vain when none was kept."""
    crowd = Crowd(
        1,
        callers=150,
        service_s=lasting,
        think_s=thinking(10.0),
        tenant=TenantSpec("t", max_waiting=bound if of == "tenant" else None),
        model=ModelSpec(
            "m", ("b",), queue_timeout_s=600.0, max_waiting_per_tenant=bound if of == "line" else None
        ),
    )
    told = crowd.run(1200.0, measured_from=300.0)
    assert told.returns > 300
    assert told.kept / told.returns >= 0.75
