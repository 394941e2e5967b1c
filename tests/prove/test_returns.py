"""What `Retry-After` is worth to callers who do as they are told (A10): in steady overload, and in a rush."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

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
