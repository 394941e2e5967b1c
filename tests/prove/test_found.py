"""What the oracle and the explorer have found, each as the shortest history that shows it."""

from __future__ import annotations

import random
from collections import deque

from inferencemesh.core.admission import Admission
from inferencemesh.core.metered import SlotSeconds
from inferencemesh.core.model import BackendSpec, ClassSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.request import Request, RequestState
from tests.prove.lockstep import Lockstep
from tests.prove.steps import Core, Setting, offer


def setting(slots: int, *tenants: TenantSpec) -> Setting:
    model = ModelSpec("m", ("b",), max_waiting=50, queue_timeout_s=1e6, refuse_hopeless=False)
    return Setting((BackendSpec("b", slots),), (model,), tenants)


def test_virtual_time_follows_wide_requests() -> None:
    """A newcomer stands beside tenants whose requests all had to collect, not where they once began (D4)."""
    core = Core(setting(3))
    number = 0

    def more(tenant: str) -> None:
        nonlocal number
        number += 1
        core.do(offer(f"{tenant}{number}", tenant, width=2))

    def next_granted() -> str:
        name = core.running()[0]
        granted = core.do(("release", *core.current(name)))
        core.do(("settle", name, True))
        more(name[0])
        return granted[0][1][0]

    for tenant in "abab":
        more(tenant)
    for _ in range(40):
        next_granted()
    for _ in range(10):
        more("c")
    order = "".join(next_granted() for _ in range(12))
    assert all(3 <= order.count(tenant) <= 5 for tenant in "abc"), order


def test_a_retry_is_not_held_up_by_a_wide_request_behind_it() -> None:
    """It is back at the head of its tenant (B6) and fits its limit, which the wide one behind it does not."""
    core = Core(setting(4, TenantSpec("t", max_running=2)))
    core.do(offer("r1", "t"))
    core.do(offer("r2", "t", width=2))  # waits for both slots of its tenant
    core.do(("drain", "r1", 0))
    assert core.do(("requeue", "r1", False, True, 0.0)) == [("granted", "r1", "b")]


def test_a_better_class_is_not_held_up_by_a_wide_request_behind_it() -> None:
    """Interactive work comes before a wide request of a class with an offset that waits for its tenant's limit (D6)."""
    core = Core(setting(4, TenantSpec("t", max_running=2)))
    core.do(offer("r1", "t"))
    core.do(offer("r2", "t", width=2, offset=30.0))
    assert core.do(offer("r3", "t")) == [("granted", "r3", "b")]


def test_a_wide_request_is_not_overtaken_by_its_own_tenant() -> None:
    """Of the same class, narrow ones that came later wait behind it (A13)."""
    core = Core(setting(4, TenantSpec("t", max_running=2)))
    core.do(offer("r1", "t"))
    core.do(offer("r2", "t", width=2))
    assert core.do(offer("r3", "t")) == [("queued", "r3")]
    assert core.do(("release", "r1", 0)) == [("granted", "r2", "b")]


def test_a_wide_request_keeps_its_tenant_waiting_after_a_better_class_has_passed() -> None:
    """That one request passed it does not open the way for those of its own class (A13)."""
    model = ModelSpec("m", ("b", "small"), max_waiting=50, queue_timeout_s=1e6, refuse_hopeless=False)
    backends = (BackendSpec("b", 3), BackendSpec("small", 1))
    core = Core(Setting(backends, (model,), (TenantSpec("t", max_running=2),)))
    core.do(offer("r1", "t"))
    core.do(offer("r2", "t", width=2, offset=30.0))  # waits for both slots of its tenant
    assert core.do(offer("r3", "t")) == [("granted", "r3", "small")]
    core.do(offer("r4", "u", width=3))  # collects on `b`, so that r2 could not be served there now
    core.do(("release", "r3", 0))
    assert core.do(offer("r5", "t", offset=30.0)) == [("queued", "r5")]


def test_a_tenant_that_was_at_its_limit_has_saved_nothing() -> None:
    """D1, D4: back under its own limit it stands beside the others, not where it was when it came to it."""
    core = Core(setting(2, TenantSpec("capped", max_running=1), TenantSpec("a"), TenantSpec("b")))
    core.do(offer("c0", "capped"))
    core.do(offer("a0", "a"))
    for number in range(1, 5):
        core.do(offer(f"c{number}", "capped"))
    for number in range(1, 30):
        core.do(offer(f"a{number}", "a"))
    for _ in range(20):  # the capped one's request is long, the other's are short
        name = next(name for name in core.running() if name[0] == "a")
        core.do(("release", *core.current(name)))
        core.do(("settle", name, True))
    for tenant in "bc":
        for number in range(5, 25):
            core.do(offer(f"{tenant}{number}", "capped" if tenant == "c" else "b"))
    turns = deque(sorted(core.running(), key=lambda name: name[0] != "c"))
    order = []
    for _ in range(18):
        name = turns.popleft()
        for step in (("release", *core.current(name)), ("settle", name, True)):
            granted = [said[1] for said in core.do(step) if said[0] == "granted"]
            turns.extend(granted)
            order += granted
    assert 4 <= sum(name[0] == "c" for name in order) <= 7, order  # a third


def test_a_tenant_back_under_its_limit_is_lifted_to_virtual_time() -> None:
    """While it was at its limit it has saved nothing up: in lockstep, counters and all (D4)."""
    both = Lockstep(setting(2, TenantSpec("t", max_running=1), TenantSpec("u")))
    for name in ("t0", "u0", "t1", "t2", *(f"u{number}" for number in range(1, 9))):
        both.do(offer(name, name[0]))
    for name in ("u0", "u1", "u2", "u3", "t0"):
        both.do(("release", name, 0))
        both.do(("settle", name, True))
    assert both.core.requests["t1"].lease is not None
    both.wind_up()


def test_a_class_that_has_room_again_is_served_wherever_it_waits() -> None:
    """Its limit spans models that share no backend (D1, D2)."""
    models = tuple(
        ModelSpec(name, (f"{name}b",), max_waiting=5, queue_timeout_s=1e6, refuse_hopeless=False)
        for name in "mn"
    )
    backends = (BackendSpec("mb", 1), BackendSpec("nb", 1))
    core = Core(Setting(backends, models, (TenantSpec("t"),), classes=(ClassSpec("x", max_running=1),)))
    core.do(offer("r1", "t", "m", klass="x"))
    assert core.do(offer("r2", "t", "n", klass="x")) == [("queued", "r2")]
    assert core.do(("release", "r1", 0)) == [("granted", "r2", "nb")]


def test_who_leaves_while_slots_are_kept_for_it_holds_nothing() -> None:
    """With the policy `slots` only what is held counts, and not what was kept for a request that left (D3)."""
    model = ModelSpec("m", ("b",), max_waiting=50, queue_timeout_s=1e6, refuse_hopeless=False)
    core = Core(Setting((BackendSpec("b", 3),), (model,), (TenantSpec("t"), TenantSpec("u")), charge="slots"))
    for name, width in (("t0", 1), ("u0", 1), ("t1", 2)):  # for t1 the third slot is kept
        core.do(offer(name, name[0], width=width))
    assert core.do(("cancel", "t1")) == []
    core.do(offer("v0", "v"))
    core.do(offer("t2", "t"))
    core.do(offer("u1", "u"))
    assert core.do(("release", "v0", 0)) == [("granted", "t2", "b")]


def test_a_close_tells_admission_no_time() -> None:
    """A backend's silence ends by time: that is seen with the next step that says what time it is, which a close is
    not, and the witness must not expect it.
    """
    both = Lockstep(setting(1))
    both.do(offer("r1", "a"))
    both.do(offer("r2", "a"))
    both.do(("requeue", "r1", False, False, 1.0))  # nothing is tried on the backend for a second
    both.do(("pass", 2.0))
    both.do(("close",))
    assert both.core.running() == []
    both.do(("expire",))
    assert both.core.running() == ["r1"]
    both.wind_up()


def test_a_collecting_request_that_goes_back_stands_where_it_stood() -> None:
    """Also where nothing was charged for it, so that nothing is given back: it came before what entered meanwhile."""
    model = ModelSpec("m", ("b",), max_waiting=50, queue_timeout_s=1e6, refuse_hopeless=False)
    both = Lockstep(Setting((BackendSpec("b", 3),), (model,), charge="fifo"))
    both.do(offer("r1", "a", width=2))
    both.do(offer("r2", "a", width=2))  # collects
    both.do(offer("r3", "b", width=2))
    both.do(offer("r4", "a", width=2))
    both.do(("resize", "b", 1))  # r2 cannot be served there any more
    both.do(("resize", "b", 3))
    assert ("granted", "r2", "b") in both.do(("release", "r1", 0))
    both.wind_up()


def test_who_begins_to_wait_for_another_model_keeps_its_place_in_the_line_of_the_first() -> None:
    """Its tenant is lifted to virtual time for the second, which it had not waited for; where it stood it stands."""
    models = tuple(
        ModelSpec(name, backends, max_waiting=50, queue_timeout_s=1e6, refuse_hopeless=False)
        for name, backends in (("m", ("slow",)), ("n", ("slow", "fast")))
    )
    core = Core(Setting((BackendSpec("slow", 1), BackendSpec("fast", 1)), models, ()))
    core.do(offer("r1", "x", "m"))
    core.do(offer("first", "a", "m"))
    core.do(offer("second", "c", "m"))
    core.do(offer("n0", "y", "n"))
    for number in range(1, 6):  # virtual time goes on with the other model
        core.do(offer(f"n{number}", "y", "n"))
        core.do(("release", f"n{number - 1}", 0))
    core.do(offer("other", "a", "n"))
    assert ("granted", "first", "slow") in core.do(("release", "r1", 0))


def test_who_comes_first_after_an_instalment_is_served_under_a_bound_over_all() -> None:
    """The one whose turn it was is too wide for the bound; a third tenant's wait must not depend on the next event."""
    admission = Admission(
        [BackendSpec("b", 8)],
        [ModelSpec("m", ("b",), 8, queue_timeout_s=1e6)],
        [TenantSpec("a"), TenantSpec("c", 0.6)],
        Limits(max_running=3),
        rng=random.Random(1),
        charge=SlotSeconds(fixed_s=2.0),
    )

    def ask(tenant: str, width: int, now: float) -> Request:
        request = Request(f"{tenant}{width}", tenant, "m", width, arrived_at=now, deadline_at=now + 1e6)
        admission.offer(request, now)
        return request

    ask("a", 1, 0.0)
    ask("c", 1, 0.8)
    wide = ask("a", 3, 0.8)
    narrow = ask("c", 1, 0.8)
    assert [request.state for request in (wide, narrow)] == [RequestState.WAITING] * 2
    admission.expire(1.5)
    admission.check()
    assert narrow.state is RequestState.RUNNING
