"""Random histories against the invariants: `check` after every step, grants never after a deadline, nothing lost."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from inferencemesh.core.model import BackendSpec, BreakerSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import LeaseState, Request, RequestState
from tests.core.driver import GONE, Mesh

NAMES = ("b0", "b1", "b2")
FAILED = Outcome(Phase.BEFORE_HEADERS, "upstream_reset")


class AdmissionMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.lists(st.integers(0, 4), min_size=3, max_size=3),
        shapes=st.lists(
            st.sampled_from([("b0",), ("b1", "b0"), ("b2",), ("b1", "b2")]), min_size=2, max_size=3
        ),
        places=st.sampled_from([None, 0, 1, 2, 5]),
        per_tenant=st.sampled_from([None, None, 2]),
        total=st.sampled_from([3, 100]),
        size=st.sampled_from([300, 10**6]),
        most=st.sampled_from([None, None, None, 3]),
        routing=st.sampled_from(["least_busy", "round_robin"]),
        caps=st.lists(st.sampled_from([None, None, 1, 2, 3]), min_size=3, max_size=3),
    )
    def build(
        self,
        slots: list[int],
        shapes: list[tuple[str, ...]],
        places: int | None,
        per_tenant: int | None,
        total: int,
        size: int,
        most: int | None,
        routing: str,
        caps: list[int | None],
    ) -> None:
        self.models = [f"m{index}" for index in range(len(shapes))]
        self.mesh = Mesh(
            [
                BackendSpec(name, count, 1.0 + index)
                for index, (name, count) in enumerate(zip(NAMES, slots, strict=True))
            ],
            [
                ModelSpec(
                    name,
                    shape,
                    max_waiting=places,
                    max_waiting_per_tenant=per_tenant,
                    queue_timeout_s=6,
                    routing=routing,
                )
                for name, shape in zip(self.models, shapes, strict=True)
            ],
            [
                TenantSpec("heavy", 3.0, max_running=caps[0]),
                TenantSpec("light", 0.7, max_running=caps[1], max_waiting=4),
                TenantSpec("odd", 1.0, max_running=caps[2]),
            ],
            Limits(max_waiting_total=total, max_waiting_bytes=size, max_running=most),
            breaker=BreakerSpec(min_requests=2, window_s=10, open_for_s=3),
        )

    @rule(
        tenant=st.sampled_from(["heavy", "light", "odd", "dyn1", "dyn2"]),
        model=st.integers(0, 2),
        width=st.sampled_from([1, 1, 1, 2, 3]),
        size=st.sampled_from([0, 10, 100]),
        offset=st.sampled_from([0.0, 0.0, 2.0]),
        ttl=st.sampled_from([2.0, 30.0]),
        count=st.integers(1, 3),
    )
    def offer(
        self, tenant: str, model: int, width: int, size: int, offset: float, ttl: float, count: int
    ) -> None:
        for _ in range(count):
            self.mesh.offer(
                tenant,
                self.models[model % len(self.models)],
                width=width,
                size_bytes=size,
                class_offset_s=offset,
                ttl_s=ttl,
            )

    def _one(self, index: int, of: dict[Request, object]) -> Request:
        return list(of)[index % len(of)]

    @precondition(lambda self: self.mesh.waiting)
    @rule(index=st.integers(0, 20))
    def cancel(self, index: int) -> None:
        self.mesh.cancel(self._one(index, dict(self.mesh.waiting)))

    @precondition(lambda self: self.mesh.running)
    @rule(index=st.integers(0, 20))
    def finish(self, index: int) -> None:
        self.mesh.finish(self._one(index, dict(self.mesh.running)))

    @precondition(lambda self: self.mesh.running)
    @rule(index=st.integers(0, 20))
    def abort(self, index: int) -> None:
        self.mesh.abort(self._one(index, dict(self.mesh.running)))

    @precondition(lambda self: self.mesh.running)
    @rule(index=st.integers(0, 20))
    def start(self, index: int) -> None:
        lease = self.mesh.running[self._one(index, dict(self.mesh.running))]
        self.mesh.apply(self.mesh.admission.started(lease, self.mesh.now))

    @precondition(lambda self: self.mesh.drains)
    @rule(index=st.integers(0, 20), twice=st.booleans())
    def confirm(self, index: int, twice: bool) -> None:
        lease = list(self.mesh.drains)[index % len(self.mesh.drains)]
        self.mesh.confirm(lease)
        if twice:
            self.mesh.apply(self.mesh.admission.release(lease, self.mesh.now))
            self.mesh.apply(self.mesh.admission.confirm(lease, "again", self.mesh.now))

    @precondition(lambda self: self.mesh.running)
    @rule(
        index=st.integers(0, 20),
        full=st.booleans(),
        how=st.sampled_from(["running", "released", "draining"]),
        wait=st.sampled_from([0.0, 0.0, 1.0]),
    )
    def requeue(self, index: int, full: bool, how: str, wait: float) -> None:
        request = self._one(index, dict(self.mesh.running))
        lease = self.mesh.running[request]
        if how == "released":
            self.mesh.release(request)
        elif how == "draining":
            self.mesh.apply(self.mesh.admission.drain(lease, self.mesh.now))
            self.mesh.drains[lease] = None
        self.mesh.requeue(request, full=full, avoid=not full, not_before_s=wait)

    @precondition(lambda self: self.mesh.running)
    @rule(index=st.integers(0, 20))
    def fail(self, index: int) -> None:
        request = self._one(index, dict(self.mesh.running))
        name = self.mesh.running[request].backend.name
        self.mesh.apply(self.mesh.admission.report(name, False, self.mesh.now))
        self.mesh.finish(request, FAILED)

    @rule(name=st.sampled_from(NAMES), ok=st.booleans())
    def report(self, name: str, ok: bool) -> None:
        self.mesh.apply(self.mesh.admission.report(name, ok, self.mesh.now))

    @rule(name=st.sampled_from(NAMES), slots=st.integers(0, 5))
    def resize(self, name: str, slots: int) -> None:
        self.mesh.apply(self.mesh.admission.resize(name, slots, self.mesh.now))

    @rule(name=st.sampled_from(NAMES), up=st.booleans())
    def set_up(self, name: str, up: bool) -> None:
        self.mesh.apply(self.mesh.admission.set_up(name, up, self.mesh.now))

    @rule(name=st.sampled_from(NAMES), on=st.booleans())
    def cordon(self, name: str, on: bool) -> None:
        self.mesh.apply(self.mesh.admission.cordon(name, on, self.mesh.now))

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 5.0]))
    def tick(self, seconds: float) -> None:
        self.mesh.tick(seconds)

    @rule(seconds=st.sampled_from([0.5, 4.0]))
    def late_timer(self, seconds: float) -> None:
        """Time passes and nobody has called `expire` yet."""
        self.mesh.now += seconds

    @invariant()
    def all_leases_are_owned(self) -> None:
        if hasattr(self, "mesh"):
            for request, lease in self.mesh.running.items():
                assert request.state is RequestState.RUNNING
                assert request.lease is lease
            assert all(lease.state is LeaseState.DRAINING for lease in self.mesh.drains)

    def teardown(self) -> None:
        """Everybody leaves: nothing of anybody is left (contract A5)."""
        if not hasattr(self, "mesh"):
            return
        mesh = self.mesh
        while mesh.waiting or mesh.running or mesh.drains:
            for request in list(mesh.waiting):
                if request in mesh.waiting:
                    mesh.cancel(request)
            for request in list(mesh.running):
                mesh.finish(request, GONE)
            for lease in list(mesh.drains):
                mesh.confirm(lease)
        mesh.is_free()
        assert {tenant.name for tenant in mesh.admission.snapshot(mesh.now).tenants} == {
            "heavy",
            "light",
            "odd",
        }


AdmissionMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAdmission = AdmissionMachine.TestCase
