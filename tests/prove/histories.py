"""Random histories from a seed: what may happen to admission, dense in what is rare."""

from __future__ import annotations

import random

from inferencemesh.core.model import BackendSpec, ClassSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.request import LeaseState
from tests.prove.invariants import forgetting_changes_nothing, replay_is_identical
from tests.prove.lockstep import Lockstep
from tests.prove.steps import Core, Setting, Step, offer

TENANTS = ("a", "b", "c", "d")  # `d` is not configured
WEIGHTS = (0.5, 1.0, 1.0, 2.0, 4.0)
KINDS = (
    *["offer"] * 6,
    *["finish"] * 4,
    *["time"] * 3,
    *["drain", "confirm", "requeue"] * 2,
    *["cancel", "started", "release", "resize", "up", "cordon", "late"],
)


def random_setting(rng: random.Random) -> Setting:
    """One fair line over one or two models, or two lines apart; small bounds, so that all of them are hit."""
    names = [f"b{number}" for number in range(rng.choice([1, 2, 2, 3]))]
    shape = rng.choice(["one", "two", "apart"] if len(names) > 1 else ["one", "two"])
    if shape == "one":
        models = [_model(rng, "m", names)]
    elif shape == "two":
        models = [_model(rng, "m", names), _model(rng, "n", names[::-1])]
    else:
        models = [_model(rng, "m", names[:1]), _model(rng, "n", names[1:])]
    together = shape != "apart"  # which of two lines a tenant's own limit serves first is left open
    caps: list[int | None] = [None, None, 1, 2, 3] if together and rng.random() < 0.5 else [None]
    return Setting(
        tuple(BackendSpec(name, rng.choice([0, 1, 1, 2, 3, 4]), rng.choice([1.0, 2.0])) for name in names),
        tuple(models),
        tuple(
            TenantSpec(
                name,
                rng.choice(WEIGHTS),
                rng.choice(caps),
                rng.choice([None, None, None, 2]),
                rng.choice([0, 0, 0, 0, 1, 2]),
            )
            for name in TENANTS[:3]
        ),
        Limits(
            max_waiting_total=rng.choice([2, 4, 100]),
            max_waiting_bytes=rng.choice([10**6, 10**6, 20]),
            max_running=rng.choice([None, None, None, 2, 3]) if together else None,
        ),
        rng.choice(["requests", "requests", "slot_seconds", "slot_seconds", "slots", "fifo"]),
        random_classes(rng, limits=together),
        rng.choice([None, None, 0.25, 1.0]),
    )


def random_classes(rng: random.Random, *, limits: bool) -> tuple[ClassSpec, ...]:
    """None, or two; without `limits` of their own where two lines would have to share them."""
    if rng.random() < 0.5:
        return ()
    x, y = rng.choice([None, 1, 2]), rng.choice([None, 1, 2, 3])
    return (ClassSpec("x", x if limits else None), ClassSpec("y", y if limits else None))


def _model(rng: random.Random, name: str, backends: list[str]) -> ModelSpec:
    return ModelSpec(
        name,
        tuple(backends),
        max_waiting=rng.choice([0, 1, 2, 3, 6]),
        max_waiting_per_tenant=rng.choice([None, None, 1, 2]),
        queue_timeout_s=rng.choice([3.0, 8.0]),
        keeps_places=False,  # the oracle has no tickets
        refuse_hopeless=False,
        routing=rng.choice(["least_busy", "round_robin"]),
    )


def random_steps(rng: random.Random, setting: Setting, core: Core, *, narrow: bool = False) -> list[Step]:
    """What happens next: one step, or a few that belong together; none if the kind drawn is not possible now."""
    kind = rng.choice(KINDS)
    running, waiting = core.running(), core.waiting()
    live = core.open_leases(LeaseState.RUNNING)
    draining = core.open_leases(LeaseState.DRAINING)
    backend = rng.choice(setting.backends).name
    if kind == "offer":
        return [_offer(rng, setting, core, narrow=narrow)]
    if kind == "finish" and running:
        name = rng.choice(running)
        return [("release", *core.current(name)), ("settle", name, rng.random() < 0.6)]
    if kind == "cancel" and waiting:
        return [("cancel", rng.choice(waiting))]
    if kind == "drain" and live:
        lease = rng.choice(live)
        return [("drain", *lease), *([("settle", lease[0], False)] if rng.random() < 0.5 else [])]
    if kind in ("release", "started") and live:
        return [(kind, *rng.choice(live))]
    if kind == "confirm" and draining:
        return [("confirm", *rng.choice(draining))]
    if kind == "requeue" and running and not narrow:
        wait = rng.choice([0.0, 0.0, 1.0])
        return [("requeue", rng.choice(running), rng.random() < 0.5, rng.random() < 0.5, wait)]
    if kind == "resize":
        return [("resize", backend, rng.choice([0, 1, 2, 3]))]
    if kind == "up":
        return [("up", backend, rng.random() < 0.7)]
    if kind == "cordon":
        return [("cordon", backend, rng.random() < 0.3)]
    if kind == "time":
        return until_wake(core, rng.choice([0.25, 1.0, 2.0]))
    if kind == "late":  # the timer comes too late
        return [("pass", rng.choice([0.5, 3.0]))]
    return []


def _offer(rng: random.Random, setting: Setting, core: Core, *, narrow: bool) -> Step:
    return offer(
        f"r{len(core.requests)}",
        rng.choice(TENANTS),
        rng.choice(setting.models).name,
        width=1 if narrow else rng.choice([1, 1, 1, 2, 3]),
        size=rng.choice([0, 5, 9]),
        offset=rng.choice([0.0, 0.0, 2.0]),
        ttl=rng.choice([2.0, 5.0, 50.0]),
        klass=rng.choice([spec.name for spec in setting.classes] or [""]),
    )


def until_wake(core: Core, seconds: float) -> list[Step]:
    """Time passes, at most to the instant at which `expire` asked to be called, and then it is."""
    wake = core.wake_at()
    if wake is not None and wake <= core.now + seconds:
        return [("pass", max(0.0, wake - core.now)), ("expire",)]
    return [("pass", seconds)]


def run(seed: int, steps: int) -> Lockstep:
    """One history in lockstep to its end; returns what has looked on.

    Every second history has only narrow requests and nothing sent back: there the bounds on fairness are exact.
    """
    rng = random.Random(seed)
    setting = random_setting(rng)
    both = Lockstep(setting)
    for _ in range(steps):
        for step in random_steps(rng, setting, both.core, narrow=bool(seed % 2)):
            both.do(step)
    both.wind_up()
    forgetting_changes_nothing(setting, both.history)
    replay_is_identical(setting, both.history)
    return both
