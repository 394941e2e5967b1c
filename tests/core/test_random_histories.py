"""Longer random histories than the state machine's, denser in what is rare: widths, caps, full answers, breakers."""

from __future__ import annotations

import random

import pytest

from inferencemesh.core.model import BackendSpec, BreakerSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from tests.core.driver import GONE, Mesh

FAILED = Outcome(Phase.BEFORE_HEADERS, "upstream_reset")
SHAPES: list[list[tuple[str, ...]]] = [
    [("b0",)],
    [("b0", "b1")],
    [("b0", "b1"), ("b1", "b0")],
    [("b0",), ("b1",)],
    [("b0", "b2"), ("b2", "b1")],
    [("b0", "b1", "b2"), ("b0", "b1", "b2"), ("b2",)],
]


def build(rng: random.Random) -> tuple[Mesh, list[str]]:
    shape = rng.choice(SHAPES)
    names = sorted({name for backends in shape for name in backends})
    models = [f"m{index}" for index in range(len(shape))]
    places = rng.choice([None, 1, 2, 6, 20])
    caps = [rng.choice([None, None, 1, 2, 3, 4]) for _ in range(3)]
    mesh = Mesh(
        [BackendSpec(name, rng.choice([1, 1, 2, 4, 6]), rng.choice([1.0, 2.0])) for name in names],
        [
            ModelSpec(
                model,
                backends,
                max_waiting=places,
                max_waiting_per_tenant=rng.choice([None, None, 3]),
                queue_timeout_s=rng.choice([4.0, 20.0]),
                routing=rng.choice(["least_busy", "round_robin"]),
            )
            for model, backends in zip(models, shape, strict=True)
        ],
        [
            TenantSpec("heavy", 3.0, caps[0]),
            TenantSpec("light", 0.7, caps[1], rng.choice([None, 3])),
            TenantSpec("odd", 1.0, caps[2]),
        ],
        Limits(
            max_waiting_total=rng.choice([8, 1000]),
            max_waiting_bytes=rng.choice([400, 10**6]),
            max_running=rng.choice([None, None, None, 2, 5]),
        ),
        breaker=BreakerSpec(min_requests=2, window_s=10, open_for_s=3, half_open=rng.choice([1, 2])),
    )
    return mesh, models


def step(mesh: Mesh, models: list[str], rng: random.Random, busy: float) -> None:
    admission = mesh.admission
    names = list(admission._state.backends)
    if rng.random() < busy:
        mesh.offer(
            rng.choice(["heavy", "light", "odd", f"dyn{rng.randrange(4)}"]),
            rng.choice(models),
            width=rng.choice([1, 1, 1, 1, 2, 3, 5]),
            size_bytes=rng.choice([0, 10, 150]),
            class_offset_s=rng.choice([0.0, 0.0, 3.0]),
            ttl_s=rng.choice([3.0, 60.0, 60.0]),
        )
        return
    what = rng.choice(["finish"] * 5 + ["cancel", "cancel", "abort", "abort", "confirm", "confirm"] + OTHER)
    request = rng.choice(list(mesh.running)) if mesh.running else None
    if what == "cancel" and mesh.waiting:
        mesh.cancel(rng.choice(list(mesh.waiting)))
    elif what == "confirm" and mesh.drains:
        mesh.confirm(rng.choice(list(mesh.drains)))
    elif what == "tick":
        mesh.tick(rng.choice([0.1, 0.3, 1.0, 3.0]))
    elif what == "late":
        mesh.now += rng.choice([0.3, 2.0])
    elif what == "report":
        mesh.apply(admission.report(rng.choice(names), rng.random() < 0.4, mesh.now))
    elif what == "resize":
        mesh.apply(admission.resize(rng.choice(names), rng.choice([0, 1, 2, 4, 6]), mesh.now))
    elif what == "up":
        mesh.apply(admission.set_up(rng.choice(names), rng.random() < 0.7, mesh.now))
    elif what == "cordon":
        mesh.apply(admission.cordon(rng.choice(names), rng.random() < 0.3, mesh.now))
    elif request is None:
        return
    elif what == "finish":
        mesh.finish(request, rng.choice([GONE, FAILED]))
    elif what == "abort":
        mesh.abort(request)
    elif what == "start":
        mesh.apply(admission.started(mesh.running[request], mesh.now))
    elif what == "full":
        mesh.requeue(request, full=True, not_before_s=rng.choice([0.0, 0.0, 1.0]))
    elif what == "retry":
        if rng.random() < 0.5:
            mesh.release(request)
        mesh.requeue(request, full=False, avoid=rng.random() < 0.8)
    elif what == "retry while draining":
        lease = mesh.running[request]
        mesh.apply(admission.drain(lease, mesh.now))
        mesh.drains[lease] = None
        mesh.requeue(request, full=rng.random() < 0.3, avoid=True)


OTHER = ["tick", "tick", "late", "report", "report", "resize", "up", "cordon", "start", "start"]
OTHER += ["full", "full", "retry", "retry", "retry while draining"]


def history(seed: int, steps: int = 80) -> None:
    rng = random.Random(seed)
    mesh, models = build(rng)
    busy = rng.choice([0.3, 0.5, 0.7])
    for _ in range(steps):
        step(mesh, models, rng, busy)
    while mesh.waiting or mesh.running or mesh.drains:
        for request in list(mesh.waiting):
            if request in mesh.waiting:
                mesh.cancel(request)
        for request in list(mesh.running):
            mesh.finish(request, GONE)
        for lease in list(mesh.drains):
            mesh.confirm(lease)
    mesh.is_free()
    assert {tenant.name for tenant in mesh.admission.snapshot(mesh.now).tenants} == {"heavy", "light", "odd"}


@pytest.mark.parametrize("block", range(4))
def test_invariants_hold_after_every_step(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        history(seed)
