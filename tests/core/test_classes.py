"""Classes over all tenants: limits and lines of their own, strict ones with a floor; and reserved slots (D6)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from inferencemesh.core.model import BackendSpec, ClassSpec, ModelSpec, TenantSpec
from inferencemesh.core.request import Request, RequestState
from tests.core.driver import Mesh

MODEL = ModelSpec(
    "m", ("b",), max_waiting=300, queue_timeout_s=1e6, refuse_hopeless=False, keeps_places=False
)


def mesh(slots: int, *classes: ClassSpec, model: ModelSpec = MODEL, **more: Any) -> Mesh:
    tenants = more.pop("tenants", ())
    return Mesh([BackendSpec("b", slots)], [model], tenants, classes=classes, **more)


def running(made: Mesh) -> list[str]:
    return sorted(request.class_name for request in made.running)


def test_a_class_at_its_limit_stands_in_nobodys_way() -> None:
    made = mesh(4, ClassSpec("high"), ClassSpec("low", 2))
    for _ in range(6):
        made.offer(class_name="low")
    assert running(made) == ["low", "low"]
    for _ in range(3):
        made.offer("other", class_name="high")
    assert running(made) == ["high", "high", "low", "low"]
    made.finish(next(r for r in made.running if r.class_name == "low"))
    assert running(made) == ["high", "high", "low", "low"]  # the slot went to the class that had it
    made.finish(next(r for r in made.running if r.class_name == "high"))
    made.finish(next(r for r in made.running if r.class_name == "high"))
    assert running(made) == ["high", "low", "low"]  # one high was left; no third of the others


def test_draining_slots_count_for_their_class() -> None:
    made = mesh(4, ClassSpec("low", 1))
    lease = made.abort(made.offer(class_name="low"))
    waiting = made.offer(class_name="low")
    assert waiting in made.waiting
    made.confirm(lease)
    assert waiting in made.running


def test_a_limit_of_a_class_holds_over_all_backends() -> None:
    specs = [replace(MODEL, name=name, backends=(name,)) for name in ("x", "y")]
    made = Mesh([BackendSpec("x", 2), BackendSpec("y", 2)], specs, classes=[ClassSpec("low", 1)], checks=True)
    first = made.offer(model="x", class_name="low")
    second = made.offer(model="y", class_name="low")
    assert (first.state, second.state) == (RequestState.RUNNING, RequestState.WAITING)
    made.finish(first)
    assert second.state is RequestState.RUNNING


def test_a_wide_request_of_a_class_is_not_overtaken_for_ever() -> None:
    made = mesh(4, ClassSpec("low", 2))
    runs = [made.offer(class_name="low") for _ in range(2)]
    wide = made.offer("w", class_name="low", width=2)
    narrow = [made.offer("n", class_name="low") for _ in range(5)]
    made.finish(runs[0])
    made.finish(runs[1])
    for request in narrow[:1]:
        if request.state is RequestState.RUNNING:
            made.finish(request)
    assert wide.state is RequestState.RUNNING
    assert made.offer("v", class_name="low", width=3).state is RequestState.REFUSED


def test_a_wide_request_that_leaves_lets_its_class_go_on() -> None:
    made = mesh(4, ClassSpec("low", 2))
    runs = [made.offer("a", class_name="low") for _ in range(2)]
    wide = made.offer("w", class_name="low", width=2)
    narrow = made.offer("n", class_name="low")
    made.finish(runs[0])
    assert (wide.state, narrow.state) == (RequestState.WAITING, RequestState.WAITING)
    made.cancel(wide)
    assert narrow.state is RequestState.RUNNING


def test_a_class_may_have_a_line_of_its_own() -> None:
    own = replace(MODEL, max_waiting=1, queue_timeout_s=3.0)
    made = mesh(1, model=replace(MODEL, max_waiting=2, by_class=(("low", own),)))
    made.offer()
    low = [made.offer(class_name="low") for _ in range(2)]
    others = [made.offer() for _ in range(3)]
    assert [r.state for r in low] == [RequestState.WAITING, RequestState.REFUSED]
    assert [r.state for r in others] == [RequestState.WAITING] * 2 + [RequestState.REFUSED]
    assert made.refused[low[1]] == made.refused[others[2]] == "queue_full"
    view = made.admission.snapshot(made.now).lines[0]
    assert (view.total, view.limit) == (3, 3)
    made.tick(3.0)
    assert made.ended[low[0]] == "queue_timeout"
    assert made.admission.snapshot(made.now).lines[0].total == 2


def served(made: Mesh, grants: int) -> list[Request]:
    """Let requests end one after the other."""
    before = len(made.order)
    for _ in range(grants):
        made.finish(next(iter(made.running)))
    return made.order[before:]


@pytest.mark.parametrize(("floor", "every"), [(0.05, 20), (0.25, 4), (0.5, 2)])
def test_strict_classes_keep_a_floor(floor: float, every: int) -> None:
    made = mesh(1, ClassSpec("high"), ClassSpec("low"), floor=floor, checks=False)
    made.offer(class_name="high")
    for _ in range(90):
        made.offer("a", class_name="high")
    low = [made.offer("b", class_name="low") for _ in range(90 // every)]
    order = served(made, 90)
    at = [number for number, request in enumerate(order, 1) if request in low]
    assert at[0] == every
    assert {after - before for before, after in pairwise(at)} == {every}


def test_every_waiting_class_has_its_floor() -> None:
    made = mesh(1, *(ClassSpec(name) for name in "xyz"), floor=0.25, checks=False)
    made.offer(class_name="x")
    for name in "xyz":
        for _ in range(90):
            made.offer("t", class_name=name)
    order = served(made, 80)
    counts = {name: sum(r.class_name == name for r in order) for name in "xyz"}
    assert counts["y"] >= 80 // 4 - 1  # a turn may lie at either end
    assert counts["z"] >= 80 // 4 - 1
    assert counts["x"] >= 36


def test_without_a_floor_classes_order_inside_a_tenant_only() -> None:
    made = mesh(1, ClassSpec("high"), ClassSpec("low"))
    made.offer("a", class_name="high")
    for number in range(4):
        made.offer("a", class_name="high")
        made.offer("b", class_name="low")
        assert number < 4
    assert [request.tenant for request in served(made, 8)].count("b") == 4


def test_who_waits_with_a_reserve_gets_the_next_slot() -> None:
    """12: as long as it holds less than what is reserved for it, whatever the others' share."""
    made = mesh(4, tenants=(TenantSpec("big", 100.0), TenantSpec("small", 0.01, reserved=2)))
    for _ in range(12):
        made.offer("big")
    for _ in range(6):
        made.offer("small")
    order = [request.tenant for request in served(made, 2)]
    assert order == ["small", "small"]
    for _ in range(8):
        made.finish(next(r for r in made.running if r.tenant == "big"))
    assert sum(r.tenant == "small" for r in made.running) >= 2


def test_a_reserve_that_nobody_needs_is_lent() -> None:
    made = mesh(4, tenants=(TenantSpec("big"), TenantSpec("small", reserved=4)))
    for _ in range(4):
        made.offer("big")
    assert len(made.running) == 4


def test_service_out_of_turn_gives_newcomers_no_advantage() -> None:
    """Virtual time does not pass those whose turn it would have been (D4)."""
    made = mesh(1, tenants=(TenantSpec("r", reserved=1), TenantSpec("a"), TenantSpec("b")), checks=False)
    made.offer("r")
    for _ in range(20):
        made.offer("r")
    waits = made.offer("a")
    served(made, 20)
    assert waits.state is RequestState.WAITING
    for _ in range(3):
        made.offer("b")
    assert served(made, 1) == [waits]


@pytest.mark.parametrize("floor", [0.05, 0.34, 0.5, 0.6, 0.9])
def test_a_floor_leaves_the_rest_to_the_most_urgent(floor: float) -> None:
    made = mesh(1, ClassSpec("high"), ClassSpec("low"), floor=floor, checks=False)
    made.offer(class_name="high")
    for name in ("high", "low"):
        for _ in range(200):
            made.offer("t", class_name=name)
    order = served(made, 100)
    assert abs(sum(r.class_name == "low" for r in order) - 100 * floor) <= 1


def saved_up(made: Mesh, blocked: dict[str, Any], then: dict[str, Any]) -> int:
    """Of 40 grants, those of a tenant that has kept one waiter where nothing could be had while others were served."""
    made.offer("a", **blocked)
    for tenant in "bc":
        for _ in range(100):
            made.offer(tenant, **then)
    done = 0
    while done < 120:
        made.finish(next(r for r in made.running if r.tenant in "bc"))
        done += 1
    before = len(made.order)
    while len(made.order) < before + 40:
        while sum(r.tenant == "a" for r in made.waiting) < 2:
            made.offer("a", **then)
        made.finish(next(r for r in made.running if r.tenant in "abc"))
    return sum(r.tenant == "a" for r in made.order[before:])


def test_waiting_for_a_full_class_saves_nothing_up() -> None:
    """D4: it is idleness where others are served."""
    made = mesh(3, ClassSpec("n"), ClassSpec("batch", 1), checks=False)
    made.offer("x", class_name="batch")
    assert saved_up(made, {"class_name": "batch"}, {"class_name": "n"}) <= 16


def test_waiting_in_a_less_urgent_class_saves_nothing_up() -> None:
    made = mesh(3, ClassSpec("n"), ClassSpec("low"), floor=0.001, checks=False)
    for tenant in "bcx":
        made.offer(tenant, class_name="n")
    assert saved_up(made, {"class_name": "low"}, {"class_name": "n"}) <= 17


def test_waiting_for_another_models_backend_saves_nothing_up() -> None:
    specs = [replace(MODEL, name="p", backends=("x",)), replace(MODEL, name="q", backends=("x", "y"))]
    made = Mesh([BackendSpec("x", 1), BackendSpec("y", 3)], specs, checks=False)
    made.offer("z", "p")
    for tenant in "bcb":
        made.offer(tenant, "q")
    assert saved_up(made, {"model": "p"}, {"model": "q"}) <= 16


def test_a_wide_request_that_could_not_run_anyway_holds_up_nobody_of_its_class() -> None:
    """Its tenant is at its own limit: the others of the class go on, until that changes."""
    made = mesh(8, ClassSpec("c", 3), ClassSpec("d"), tenants=(TenantSpec("T", max_running=2),))
    runs = [made.offer("L", class_name="c") for _ in range(2)]
    wide = made.offer("T", class_name="c", width=2)
    own = [made.offer("T", class_name="d") for _ in range(2)]
    narrow = made.offer("U", class_name="c")
    assert narrow in made.running
    for request in [*own, *runs, narrow]:
        made.finish(request)
    assert wide in made.running


def test_a_wide_request_whose_backend_is_down_holds_up_nobody_of_its_class() -> None:
    specs = [replace(MODEL, name="p", backends=("x",)), replace(MODEL, name="q", backends=("y",))]
    made = Mesh([BackendSpec("x", 3), BackendSpec("y", 8)], specs, classes=[ClassSpec("c", 3)])
    made.offer("L", "q", class_name="c")
    wide = made.offer("T", "p", class_name="c", width=3)
    waits = made.offer("U", "q", class_name="c")
    assert waits in made.waiting
    made.apply(made.admission.set_up("x", False, made.now))
    assert waits in made.running
    assert wide in made.waiting
