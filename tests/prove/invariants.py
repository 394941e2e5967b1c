"""The promises of admission, each as a check over what a `Watch` has seen. Each raises AssertionError.

The numbers are those of the list in docs/reliability.md. The bounds that take long runs to come near to are in
`test_bounds`: with charges that are corrected later (7), for the policy `slots` (8), and for reserves (12).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from inferencemesh.core.fairqueue import FairQueue
from inferencemesh.core.request import LeaseState, RequestState
from inferencemesh.core.tenant import SCALE
from tests.prove.steps import Core, Setting, Step
from tests.prove.watch import WOULD_WAIT, Watch

EPSILON = 1e-6


def held_within_capacity(watch: Watch) -> None:
    """1: running + draining is within each backend's slots, but for what a shrink left, which only falls."""
    open_leases = [(watch.core.leases[name], state) for name, state in watch.open.items()]
    for before, now in zip(watch.before.backends, watch.seen.backends, strict=True):
        mine = [(lease, state) for lease, state in open_leases if lease.backend.name == now.name]
        running = sum(lease.width for lease, state in mine if state is LeaseState.RUNNING)
        draining = sum(lease.width for lease, state in mine if state is LeaseState.DRAINING)
        assert (now.running, now.draining) == (running, draining), (now, watch.open)
        held = now.running + now.draining
        excess_before = before.running + before.draining
        assert held <= max(watch.slots[now.name], watch.slots_before[now.name], excess_before), now
        assert now.free == max(0, now.believed - held), now


def counts_add_up(watch: Watch) -> None:
    """2: the books of requests, leases, lines and tenants are the same thing counted in several ways; limits hold."""
    totals = watch.seen.totals
    where = list(watch.where.values())
    waiting = watch.waiting()
    assert totals.waiting == where.count("waiting") == len(waiting)
    assert totals.running == where.count("running")
    assert totals.refused == where.count("refused")
    assert totals.completed == watch.ends["completed"]
    assert totals.failed == watch.ends["failed"]
    assert totals.cancelled == watch.ends["cancelled"]
    assert totals.expired == watch.ends["expired"]
    ended = totals.completed + totals.failed + totals.cancelled + totals.expired
    assert totals.accepted == totals.waiting + totals.running + ended
    assert totals.grants == totals.settled + len(watch.open)
    assert totals.waiting_bytes == sum(request.size_bytes for request in waiting)
    for view in watch.seen.tenants:
        held = watch.held(view.name)
        assert view.running + view.draining == held, view
        cap = watch.caps.get(view.name)
        assert cap is None or held <= cap, view
    for spec, line in zip(watch.setting.models, watch.seen.lines, strict=True):
        here = [request for request in waiting if request.model == spec.name]
        assert line.total == len(here) == sum(line.by_tenant.values()), line
        bound = sum(1 for request in here if request.attempts == 0 and request.fulls == 0)
        assert spec.max_waiting is None or bound <= spec.max_waiting, line
    limits = watch.setting.limits
    fresh = [request for request in waiting if request.attempts == 0 and request.fulls == 0]
    assert len(fresh) <= limits.max_waiting_total
    assert limits.max_running is None or sum(watch.held(t) for t in _tenants(watch)) <= limits.max_running


def _tenants(watch: Watch) -> set[str]:
    return {request.tenant for request in watch.core.requests.values()}


def nothing_idles(watch: Watch) -> None:
    """3: no slot is free for a waiter that is eligible, first of its tenant, and fits there (D2)."""
    told = [step[0] for step in watch.history if step[0] != "close"]  # a close tells admission no time
    if not told or told[-1] == "pass":
        return  # time went by, and admission has not been called yet
    now = watch.core.now
    most = watch.setting.limits.max_running
    held = sum(watch.held(tenant) for tenant in _tenants(watch))
    waiting = [request for request in watch.waiting() if request._lane is not None]
    for request in waiting:
        cap = watch.caps.get(request.tenant)
        collecting = sum(r.width for r in watch.keeping if r.tenant == request.tenant)
        if cap is not None and watch.held(request.tenant) + collecting + request.width > cap:
            continue
        if cap is not None and any(r.tenant == request.tenant and r.width > 1 for r in waiting):
            continue  # the narrow ones of a tenant wait behind a wide one that waits for its limit
        if any(spec.max_running is not None for spec in watch.setting.classes):
            continue  # the oracle counts them
        if most is not None and (held + request.width > most or any(r.width > 1 for r in watch.waiting())):
            continue
        spec = next(model for model in watch.setting.models if model.name == request.model)
        usable = [
            b
            for b in watch.seen.backends
            if b.name in spec.backends and b.up and not b.cordoned and b.capacity
        ]
        others = [b for b in usable if b.name not in request.avoid]
        for view in others or usable:
            quiet = watch.quiet_until.get(view.name, 0.0) > now
            if not quiet and view.breaker == "closed" and view.reserved_for is None:
                assert view.free < request.width, (request, view)


def one_end_each(watch: Watch) -> None:
    """4: each request has one end, each lease is freed once, and only after the backend's end or a confirmation."""
    assert not watch.twice, watch.twice
    assert all(count == 1 for count in watch.freed.values()), watch.freed
    for name, place in watch.where.items():
        request = watch.core.requests[name]
        state = {
            "refused": RequestState.REFUSED,
            "waiting": RequestState.WAITING,
            "running": RequestState.RUNNING,
            "over": RequestState.SETTLED,
        }[place]
        assert request.state is state, (request, place)
        assert (request.outcome is not None) == (place == "over"), request


def deadlines_hold(watch: Watch) -> None:
    """5: nothing starts at or after its deadline, and after `expire` nothing waits whose time has come."""
    assert not watch.granted_late, watch.granted_late
    if watch.history and watch.history[-1] == ("expire",):
        now = watch.core.now
        for request in watch.waiting():
            assert request.deadline_at > now, request
            assert request._expires_at > now, request


def grants_are_fair(watch: Watch) -> None:
    """6, bound B1: |D_i/w_i - D_j/w_j| <= e/w_i + e/w_j over any interval in which both are backlogged, e = 1."""
    for (one, other), pair in watch.pairs.items():
        bound = 1 / watch.weight(one) + 1 / watch.weight(other)
        assert pair.most - pair.least <= bound + EPSILON, (one, other, pair)


def counters_stay_close(watch: Watch) -> None:
    """7, bound B2 as it is without corrections: |F_i - F_j| <= e/w_i + e/w_j at all times, for those of 6."""
    services = watch.services()
    for one, other in watch.pairs:
        bound = 1 / watch.weight(one) + 1 / watch.weight(other)
        assert abs(services[one] - services[other]) <= (bound + EPSILON) * SCALE, (one, other, services)


def service_is_conserved(watch: Watch) -> None:
    """9: V never falls; nobody begins to wait behind V; what was charged is what was granted, and kept from others."""
    for pool, value in watch.previous_virtual.items():
        assert watch.virtual[pool] >= value
    assert not watch.unlifted, watch.unlifted
    if watch.final and all(request.tenant in watch.weights for request in watch.core.requests.values()):
        kept = sum(request.width for request in watch.keeping)
        charged = sum(view.service for view in watch.seen.tenants)
        assert abs(charged - watch.expected_charge - kept) <= EPSILON, (charged, watch.expected_charge, kept)


def idleness_buys_nothing(watch: Watch) -> None:
    """10: since one of two tenants came (back), it was granted at most one charge of each more than the other."""
    for (one, other), pair in watch.pairs.items():
        bound = 1 / watch.weight(one) + 1 / watch.weight(other)
        assert abs(pair.now - pair.base) <= bound + EPSILON, (one, other, pair)


def nobody_starves(watch: Watch) -> None:
    """11: before a tenant's head, each other tenant is granted at most w_j (F_i - V) + 1 times; classes keep order."""
    for head in watch.heads.values():
        for tenant, count in head.passed.items():
            assert count <= watch.weight(tenant) * head.allowance + 1 + EPSILON, (head, tenant)
    assert not watch.out_of_order, watch.out_of_order


def advice_is_sane(watch: Watch) -> None:
    """14: Retry-After is within (0, 60]; at one instant each refused caller of a tenant is told a later time.

    That is, up to where it is capped, in each class that goes at a pace of its own.
    """
    for refused in watch.refusals:
        assert 0 < refused.refusal.retry_after_s <= 60
    last: dict[tuple[str, str, str], float] = {}
    for *who, seconds in watch.advice:
        tenant, model, line = who
        assert seconds >= 30 or seconds > last.get((tenant, model, line), 0.0), watch.advice
        last[tenant, model, line] = seconds


def refusals_are_needed(watch: Watch) -> None:
    """15: nobody is refused a place while a slot is free for it; for its deadline only when that is (A8)."""
    now = watch.core.now
    for refused in watch.refusals:
        request, code = refused.request, refused.refusal.code
        if code == "deadline_exceeded":
            assert request.deadline_at <= now
        if code not in WOULD_WAIT:
            continue
        spec = next(model for model in watch.setting.models if model.name == request.model)
        views = [view for view in watch.seen.backends if view.name in spec.backends]
        if code == "deadline_unreachable":
            assert watch.completions[request.model] >= 20
            assert any(r.model == request.model for r in watch.waiting())
        cap = watch.caps.get(request.tenant)
        if (
            request.width > 1
            or watch.setting.limits.max_running is not None
            or cap is not None
            or watch.keeping
            or any(spec.max_running is not None for spec in watch.setting.classes)
        ):
            continue
        for view in views:
            quiet = watch.quiet_until.get(view.name, 0.0) > now
            taken = quiet or not view.up or view.cordoned or view.breaker != "closed"
            assert taken or view.free < request.width, (refused, view)


CHECKS: tuple[Callable[[Watch], None], ...] = (
    held_within_capacity,
    counts_add_up,
    nothing_idles,
    one_end_each,
    deadlines_hold,
    grants_are_fair,
    counters_stay_close,
    service_is_conserved,
    idleness_buys_nothing,
    nobody_starves,
    advice_is_sane,
    refusals_are_needed,
)


def check_all(watch: Watch) -> None:
    """All of them, and the core's own."""
    for check in CHECKS:
        check(watch)
    watch.core.admission.check()


# --- over whole histories -------------------------------------------------------------------------------------------


def forgetting_changes_nothing(setting: Setting, history: Sequence[Step]) -> None:
    """13: with idle tenants never forgotten, the same history decides the same.

    But where a grant is undone: what V has passed while its tenant was idle is forgotten and can not be given
    back, so that such a tenant may stand one charge further back (the oracle models that exactly). And but where
    equal tenants could give way: which of them does is open, and the comparison ends.
    """
    forgetful, mindful = Core(setting), Core(setting)
    drop = FairQueue._drop
    for step in history:
        if step[0] == "requeue":
            return
        expected = forgetful.do(step)
        FairQueue._drop = lambda self, flow: None  # type: ignore[method-assign]
        try:
            decided = mindful.do(step)
        finally:
            FairQueue._drop = drop  # type: ignore[method-assign]
        if decided != expected:
            assert any(said[0] == "displaced" for said in expected), (step, decided, expected, history)
            return


def replay_is_identical(setting: Setting, history: Sequence[Step], seed: int = 7) -> None:
    """20: same seed, same history: the same decisions, with the same words and times of return."""
    assert _full_log(setting, history, seed) == _full_log(setting, history, seed)


def _full_log(setting: Setting, history: Sequence[Step], seed: int) -> list[str]:
    core = Core(setting, rng=random.Random(seed))
    log = []
    for step in history:
        core.do(step)
        log += [f"{core.now} {effect!r}" for effect in core.effects]
    return log
