"""Every waiter's turn comes, also where not all compete for the same (D3-D6): classes, reserves, other backends."""

from __future__ import annotations

import pytest

from inferencemesh.core.charge import ChargePolicy, PerSlot
from inferencemesh.core.metered import SlotSeconds, Tokens
from inferencemesh.core.model import BackendSpec, ClassSpec, ModelSpec, TenantSpec
from tests.prove.floods import Flood, Floods

UNITS: list[type[ChargePolicy]] = [SlotSeconds, PerSlot, Tokens]
LIMITED = (ClassSpec("normal"), ClassSpec("batch", max_running=2))
RANKED = (ClassSpec("normal"), ClassSpec("batch"))
SLOWER = [(LIMITED, None), (RANKED, 0.1)]  # classes, and the floor


def model(name: str = "m", *backends: str, places: int = 200) -> ModelSpec:
    return ModelSpec(name, backends or ("b",), max_waiting=places, queue_timeout_s=1e6)


def tenants(*names: str, **reserved: int) -> list[TenantSpec]:
    return [TenantSpec(name, reserved=reserved.get(name, 0)) for name in names]


def behind(
    unit: type[ChargePolicy],
    classes: tuple[ClassSpec, ...],
    floor: float | None,
    backends: list[BackendSpec],
    models: list[ModelSpec],
) -> Floods:
    """`b` floods one class and `a` a slower one, which has fallen far behind by now."""
    world = Floods(backends, models, tenants("a", "b", "c"), charge=unit(), classes=classes, floor=floor)
    world.add(Flood("b", 30, klass="normal", tokens_per_s=20.0))
    world.add(Flood("a", 20, klass="batch", tokens_per_s=20.0))
    world.run(200.0)
    world.forget()
    return world


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("classes", "floor"), SLOWER)
def test_a_newcomer_of_a_slower_class_stands_beside_those_of_its_class(
    unit: type[ChargePolicy], classes: tuple[ClassSpec, ...], floor: float | None
) -> None:
    """Not behind what the faster class has had meanwhile, however long the gateway has run."""
    world = behind(unit, classes, floor, [BackendSpec("b", 16)], [model()])
    world.add(Flood("c", 20, klass="batch", tokens_per_s=20.0))
    world.run(100.0)
    assert world.granted["c"] == pytest.approx(world.granted["a"], rel=0.15)
    assert world.granted["b"] > 3 * world.granted["a"]
    world.admission.check()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("classes", "floor"), SLOWER)
def test_a_newcomer_of_the_faster_class_is_not_put_before_those_of_its_class(
    unit: type[ChargePolicy], classes: tuple[ClassSpec, ...], floor: float | None
) -> None:
    """Beside the laggards of another class it would have everything until it had caught up with the rest."""
    backends = [BackendSpec("b", 12), BackendSpec("b2", 4)]
    world = behind(unit, classes, floor, backends, [model("m", "b", "b2"), model("n", "b2")])
    world.add(Flood("c", 30, klass="normal", tokens_per_s=20.0))
    world.run(50.0)
    assert world.granted["c"] == pytest.approx(world.granted["b"], rel=0.15)


def test_a_tenants_own_order_holds_over_its_classes() -> None:
    """A class that has fallen behind V does not come before the tenant's more urgent one for all that (D6)."""
    world = Floods([BackendSpec("b", 8)], [model()], tenants("a", "b"), charge=SlotSeconds(), classes=LIMITED)
    world.add(Flood("b", 20, klass="normal"))
    world.add(Flood("a", 20, klass="batch", offset_s=60.0))
    world.run(100.0)
    world.add(Flood("a", 20, klass="normal"))
    world.run(2.0)
    world.forget()
    world.run(30.0)
    assert ("a", "batch") not in world.grants, (
        "as long as its normal ones wait, who came up to a minute earlier"
    )
    assert world.granted["a"] == pytest.approx(world.granted["b"], rel=0.1)


@pytest.mark.parametrize("unit", [SlotSeconds, PerSlot])
@pytest.mark.parametrize("callers", [2, 16])
def test_what_is_used_elsewhere_does_not_cost_a_tenant_its_turn(
    unit: type[ChargePolicy], callers: int
) -> None:
    """`c` keeps idle slots of another model busy, and still has its share of the one that `a` floods."""
    world = Floods(
        [BackendSpec("b0", 2), BackendSpec("b1", 16)],
        [model("x", "b0"), model("y", "b1"), model("z", "b0", "b1")],
        tenants("a", "c"),
        charge=unit(),
    )
    world.add(Flood("a", 20, model="x"))
    world.add(Flood("c", callers, model="y"))
    world.run(100.0)
    world.add(Flood("c", 1, (0.5, 1.5), model="x"))
    before = len(world.waited["c"])
    world.run(300.0)
    long_waits = [waited for waited in world.waited["c"][before:] if waited > 60]
    assert not long_waits
    world.admission.check()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_a_reserve_is_for_what_fits_into_it(width: int) -> None:
    """One reserved slot does not put requests of eight before everybody, again and again (G4)."""
    world = Floods([BackendSpec("b", 8)], [model()], tenants("a", "b", "r", r=1), charge=SlotSeconds())
    for name in ("a", "b"):
        world.add(Flood(name, 20))
    world.add(Flood("r", 10, width=width))
    world.run(300.0)
    total = sum(world.held_s.values())
    assert world.held_s["r"] / total < 0.40
    assert min(world.held_s["a"], world.held_s["b"]) / total > 0.28


@pytest.mark.parametrize("floods", [2, 8, pytest.param(16, marks=pytest.mark.slow)])
def test_a_reserve_holds_at_a_full_line(floods: int) -> None:
    """Four of eight slots are the tenant's, however many others press for the places (they come back at once)."""
    names = [f"t{number}" for number in range(floods)]
    world = Floods([BackendSpec("b", 8)], [model(places=8)], tenants(*names, "r", r=4), charge=SlotSeconds())
    for name in names:
        world.add(Flood(name, 8))
    world.add(Flood("r", 5))
    world.run(30.0)
    world.forget()
    world.run(90.0)
    assert world.held_s["r"] / 90.0 > 3.0


def test_a_reserve_holds_in_a_less_urgent_class() -> None:
    world = Floods(
        [BackendSpec("b", 8)],
        [model()],
        tenants("a", "b", "r", r=4),
        charge=SlotSeconds(),
        classes=RANKED,
        floor=0.05,
    )
    for name in ("a", "b"):
        world.add(Flood(name, 20, klass="normal"))
    world.add(Flood("r", 6, klass="batch"))
    world.run(20.0)
    world.forget()
    world.run(100.0)
    assert world.held_s["r"] / 100.0 > 3.6


@pytest.mark.parametrize("slots", [8, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("long_s", [(4.0, 8.0), (30.0, 60.0)])
@pytest.mark.parametrize("unit", [SlotSeconds, Tokens])
def test_D5_holds_beside_floods_of_different_lengths(
    unit: type[ChargePolicy], long_s: tuple[float, float], slots: int
) -> None:
    """What one tenant's requests cost says nothing of another's: else the short ones' refunds come before everybody."""
    world = Floods([BackendSpec("b", slots)], [model()], tenants("long", "short", "light"), charge=unit())
    world.add(Flood("long", 3 * slots, long_s, tokens_per_s=20.0))
    world.add(Flood("short", 3 * slots, (0.3, 0.6), tokens_per_s=20.0))
    world.run(200.0)
    world.add(Flood("light", 1, (0.1, 0.2), pause_s=3.0, tokens_per_s=20.0))
    world.run(600.0)
    waited = sorted(world.waited["light"])
    assert len(waited) > 100
    assert waited[int(0.95 * len(waited))] <= 1
