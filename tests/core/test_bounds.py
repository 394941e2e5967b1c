"""How much is accepted: places and bytes are bounded, exactly, and every way out frees them (contract A2, A3, A5)."""

from __future__ import annotations

from collections import Counter

import pytest

from inferencemesh.core.admission import Displaced, Granted
from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.request import RequestState
from tests.core.driver import Mesh, one


def test_a_thousand_at_once_give_8_running_16_waiting_976_refused() -> None:
    mesh = Mesh(*one(8, places=16), checks=False)
    for _ in range(1000):
        mesh.offer()
        assert len(mesh.waiting) <= 16
        assert len(mesh.running) <= 8
    assert (len(mesh.running), len(mesh.waiting)) == (8, 16)
    assert Counter(mesh.refused.values()) == {"queue_full": 976}
    assert mesh.line().total == 16
    mesh.check()
    state = mesh.admission._state
    assert len(state.expiries) == 16  # nothing of the refused is kept
    assert state.books.refused == 976


def test_refused_tenants_leave_no_trace() -> None:
    mesh = Mesh(*one(1, places=0))
    mesh.offer("first")
    for number in range(50):
        mesh.offer(f"stranger{number}")
    assert {tenant.name for tenant in mesh.admission.snapshot(0).tenants} == {"first"}


def test_no_waiting_refuses_at_once_but_never_a_request_that_fits() -> None:
    mesh = Mesh(*one(2, places=0))
    first, second = mesh.offer(), mesh.offer()
    third = mesh.offer()
    assert mesh.refused == {third: "queue_full"}
    mesh.finish(first)
    assert mesh.offer().state is RequestState.RUNNING
    mesh.finish(second)


def test_every_way_out_frees_the_place() -> None:
    mesh = Mesh(*one(1, places=3))
    running = mesh.offer()
    cancelled, timed_out = mesh.offer(), mesh.offer()
    late = mesh.offer(ttl_s=3)
    assert mesh.line().total == 3
    mesh.cancel(cancelled)
    mesh.tick(3)
    assert mesh.ended[late] == "deadline_exceeded"
    mesh.tick(7)
    assert mesh.ended[timed_out] == "queue_timeout"
    granted = mesh.offer()
    mesh.finish(running)
    mesh.finish(granted)
    mesh.is_free()


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(max_waiting_total=2), "queue_full"),
        (Limits(max_waiting_bytes=200), "queue_bytes_full"),
        (Limits(max_waiting_bytes=200, max_waiting_total=2), "queue_full"),  # the widest is named
    ],
)
def test_bounds_over_the_process(limits: Limits, code: str) -> None:
    mesh = Mesh(*one(1), limits=limits)
    mesh.offer(size_bytes=10_000)  # runs: only waiters count
    for _ in range(2):
        assert mesh.offer(size_bytes=100).state is RequestState.WAITING
    refused = mesh.offer(size_bytes=100)
    assert mesh.refused == {refused: code}


def test_the_process_bound_spans_models() -> None:
    mesh = Mesh(
        [BackendSpec("b", 1), BackendSpec("c", 1)],
        [ModelSpec("m", ("b",), max_waiting=9), ModelSpec("n", ("c",), max_waiting=9)],
        limits=Limits(max_waiting_total=2),
    )
    for model in ("m", "n", "m", "n", "m"):
        mesh.offer(model=model)
    assert list(mesh.refused.values()) == ["queue_full"]


def test_a_tenants_own_bounds() -> None:
    backends, models = one(1, places=9, max_waiting_per_tenant=3)
    mesh = Mesh(backends, models, [TenantSpec("capped", max_waiting=1)])
    mesh.offer("other")
    mesh.offer("capped")
    assert mesh.refused[mesh.offer("capped")] == "tenant_queue_full"
    for _ in range(3):
        mesh.offer("other")
    assert mesh.refused[mesh.offer("other")] == "tenant_queue_full"
    assert mesh.offer("third").state is RequestState.WAITING


def test_a_tenants_bound_spans_models_and_yields_to_the_wider_code() -> None:
    mesh = Mesh(
        [BackendSpec("b", 1), BackendSpec("c", 1)],
        [ModelSpec("m", ("b",), max_waiting=9), ModelSpec("n", ("c",), max_waiting=1)],
        [TenantSpec("t", max_waiting=2)],
    )
    for model in ("m", "n", "m", "n"):
        mesh.offer(model=model)
    assert mesh.refused[mesh.offer(model="m")] == "tenant_queue_full"
    assert mesh.refused[mesh.offer(model="n")] == "queue_full"


def test_the_automatic_line_is_short_and_follows_the_service_time() -> None:
    mesh = Mesh(*one(8, places=None))
    assert mesh.line().limit == 4  # 8 slots x 5 s / 10 s
    for _ in range(40):
        request = mesh.offer()
        mesh.tick(0.5)
        mesh.finish(request)
    assert mesh.line().limit == 32  # 80 by the quotient, and never more than 4 x slots
    mesh.apply(mesh.admission.set_up("b", False, mesh.now))
    assert mesh.line().limit == 1


def test_no_backend_and_shutdown() -> None:
    mesh = Mesh(*one(1))
    running, waiting = mesh.offer(), mesh.offer()
    mesh.apply(mesh.admission.cordon("b", True, 0))
    assert mesh.refused[mesh.offer()] == "no_backend"
    assert waiting in mesh.waiting
    mesh.apply(mesh.admission.cordon("b", False, 0))
    mesh.admission.refuse_all("shutting_down")
    assert mesh.refused[mesh.offer()] == "shutting_down"
    mesh.finish(running)
    assert waiting in mesh.running  # who waits is served


def test_unknown_model_and_passed_deadline() -> None:
    mesh = Mesh(*one(1))
    assert mesh.refused[mesh.offer(model="none")] == "model_not_found"
    assert mesh.refused[mesh.offer(ttl_s=0)] == "deadline_exceeded"


def test_a_place_says_what_it_would_have_been() -> None:
    mesh = Mesh(*one(1, places=1))
    mesh.offer()
    mesh.offer()
    effects = mesh.admission.offer(mesh.request(), mesh.now)
    refusal = effects[-1].refusal  # type: ignore[union-attr]
    assert refusal.place == 2
    assert refusal.estimate_s == pytest.approx(20)  # one slot, 10 s each until more is known


def test_memory_follows_the_waiters_through_churn() -> None:
    mesh = Mesh(*one(1, places=50), checks=False)
    mesh.offer()
    kept = [mesh.offer() for _ in range(10)]
    for _ in range(2000):
        mesh.cancel(mesh.offer(f"t{mesh.number % 7}"))
    mesh.check()
    state = mesh.admission._state
    assert len(state.expiries) <= 2 * len(kept) + 66
    assert len(state.tenants) == 1


def test_bytes_give_way_to_a_tenant_below_its_share() -> None:
    mesh = Mesh(*one(1, places=100), limits=Limits(max_waiting_bytes=1000))
    mesh.offer("flood")
    flood = [mesh.offer("flood", size_bytes=100) for _ in range(10)]
    assert mesh.refused[mesh.offer("flood", size_bytes=1)] == "queue_bytes_full"
    small = mesh.request("small", size_bytes=150)
    effects = mesh.apply(mesh.admission.offer(small, mesh.now))
    assert small.state is RequestState.WAITING
    assert [effect.request for effect in effects if isinstance(effect, Displaced)] == flood[:-3:-1]
    assert mesh.refused[mesh.offer("greedy", size_bytes=600)] == "queue_bytes_full"  # more than its share


def test_a_grant_never_needs_a_place() -> None:
    mesh = Mesh(*one(2, places=0), limits=Limits(max_waiting_total=0, max_waiting_bytes=0))
    request = mesh.request(size_bytes=10**9)
    effects = mesh.apply(mesh.admission.offer(request, 0))
    assert [type(effect) for effect in effects] == [Granted]
