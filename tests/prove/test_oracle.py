"""The core decides what the oracle decides: random histories that shrink (hypothesis), and many more from seeds.

Every invariant of `invariants` is checked after every step of both. `PROVE=1` runs many times as many.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from inferencemesh.core.request import LeaseState
from tests.prove.histories import TENANTS, random_setting, run, until_wake
from tests.prove.lockstep import Lockstep
from tests.prove.steps import Step, offer

PROVE = bool(os.environ.get("PROVE"))
INDEX = st.integers(0, 30)


class Machine(RuleBasedStateMachine):
    """Any step in any order, on the setting of a seed."""

    both: Lockstep

    @initialize(seed=st.integers(0, 10_000))
    def build(self, seed: int) -> None:
        self.both = Lockstep(random_setting(random.Random(seed)))
        self.core = self.both.core
        self.backends = [backend.name for backend in self.both.setting.backends]

    def do(self, *steps: Step) -> None:
        for step in steps:
            self.both.do(step)

    def running(self) -> list[str]:
        return self.core.running()

    @rule(
        tenant=st.sampled_from(TENANTS),
        model=INDEX,
        width=st.sampled_from([1, 1, 1, 2, 3]),
        size=st.sampled_from([0, 5, 9]),
        offset=st.sampled_from([0.0, 0.0, 2.0]),
        ttl=st.sampled_from([2.0, 5.0, 50.0]),
        times=st.integers(1, 3),
    )
    def offers(
        self, tenant: str, model: int, width: int, size: int, offset: float, ttl: float, times: int
    ) -> None:
        models = self.both.setting.models
        for _ in range(times):
            name = f"r{len(self.core.requests)}"
            self.do(offer(name, tenant, models[model % len(models)].name, width, size, offset, ttl))

    @precondition(lambda self: self.running())
    @rule(index=INDEX, ok=st.booleans())
    def ends(self, index: int, ok: bool) -> None:
        name = self.running()[index % len(self.running())]
        self.do(("release", *self.core.current(name)), ("settle", name, ok))

    @precondition(lambda self: self.core.waiting())
    @rule(index=INDEX)
    def cancels(self, index: int) -> None:
        waiting = self.core.waiting()
        self.do(("cancel", waiting[index % len(waiting)]))

    @precondition(lambda self: self.core.open_leases(LeaseState.RUNNING))
    @rule(index=INDEX, what=st.sampled_from(["drain", "drain and settle", "release", "started"]))
    def on_a_lease(self, index: int, what: str) -> None:
        live = self.core.open_leases(LeaseState.RUNNING)
        name, number = live[index % len(live)]
        self.do((what.split()[0], name, number))
        if "settle" in what:
            self.do(("settle", name, False))

    @precondition(lambda self: self.core.open_leases(LeaseState.DRAINING))
    @rule(index=INDEX)
    def confirms(self, index: int) -> None:
        draining = self.core.open_leases(LeaseState.DRAINING)
        self.do(("confirm", *draining[index % len(draining)]))

    @precondition(lambda self: self.running())
    @rule(index=INDEX, full=st.booleans(), avoid=st.booleans(), wait=st.sampled_from([0.0, 0.0, 1.0]))
    def requeues(self, index: int, full: bool, avoid: bool, wait: float) -> None:
        self.do(("requeue", self.running()[index % len(self.running())], full, avoid, wait))

    @rule(index=INDEX, slots=st.integers(0, 3))
    def resizes(self, index: int, slots: int) -> None:
        self.do(("resize", self.backends[index % len(self.backends)], slots))

    @rule(index=INDEX, what=st.sampled_from(["up", "cordon"]), on=st.booleans())
    def switches(self, index: int, what: str, on: bool) -> None:
        self.do((what, self.backends[index % len(self.backends)], on))

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.do(*until_wake(self.core, seconds))

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def timer_is_late(self, seconds: float) -> None:
        self.do(("pass", seconds))

    @rule()
    def shuts_down(self) -> None:
        if len(self.both.history) > 20:
            self.do(("close",))

    def teardown(self) -> None:
        if hasattr(self, "both"):
            self.both.wind_up()


Machine.TestCase.settings = settings(
    max_examples=5000 if PROVE else 40,
    stateful_step_count=60 if PROVE else 25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not PROVE,
)
TestOracle = Machine.TestCase


@pytest.mark.parametrize("block", range(24 if PROVE else 2))
def test_seeded_histories(block: int) -> None:
    each = 400 if PROVE else 250
    for seed in range(block * each, (block + 1) * each):
        run(seed, steps=80 if PROVE else 60)
