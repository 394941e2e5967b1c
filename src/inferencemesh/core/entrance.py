"""Whether a request that cannot be granted at once gets a place, and at whose cost (contract A2, A3, A8, D8).

When several bounds are hit at once the widest is named. A full line, or a full process, is shared by weight:
the newest waiter of the tenant most above its share gives way to a tenant below its own. Where that would
only swap one unfairness for its mirror image, virtual service decides, so that two floods cannot displace
each other in turns while a third tenant stays outside. Nothing here scans tenants or waiters.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferencemesh.core.estimate import is_hopeless
from inferencemesh.core.line import Line
from inferencemesh.core.places import Places
from inferencemesh.core.request import Request
from inferencemesh.core.served import Served
from inferencemesh.core.state import State
from inferencemesh.core.tenant import Tenant


@dataclass(slots=True)
class Verdict:
    """`code` refuses; else `victim` is displaced first, and more while `over_bytes`."""

    code: str | None = None
    victim: Request | None = None
    over_bytes: bool = False


_ENTER = Verdict()


def refused_outright(state: State, request: Request, model: Served, tenant: Tenant, now: float) -> str | None:
    """Return the code of a refusal that needs no look at the line, None if there is none."""
    if state.closed is not None:
        return state.closed
    if too_wide(request, model, tenant):
        return "invalid_request"
    if not model.route.is_present:
        return "no_backend"
    if request.deadline_at <= now:
        return "deadline_exceeded"
    return None


def too_wide(request: Request, model: Served, tenant: Tenant) -> bool:
    """Whether the request could never run: wider than every backend of its model, or than a limit on running."""
    width = request.width
    return width != 1 and (width < 1 or width > model.widest(request, tenant))


def judge(
    state: State, request: Request, model: Served, tenant: Tenant, now: float, *, claims: bool = False
) -> Verdict:
    """Decide on a place for a request that cannot be granted now. Changes nothing.

    `claims`: it holds a ticket for coming back that is due, so that no place is kept from it.
    """
    line = request._line
    assert line is not None  # noqa: S101 - set when it was offered
    limits = state.limits
    books = state.books
    place = line.tenants.get(tenant)
    waiting = place.count if place is not None else 0
    own_full = _own_full(line, tenant, waiting, claims)
    victim: Request | None = None
    limit = model.limit(line)
    line_full = line.count >= limit
    if line_full or books.waiting >= limits.max_waiting_total:
        if own_full:
            return Verdict("queue_full")
        if line_full:
            victim = _give_way(state, request, model, tenant, line.places, limit, line)
        else:
            victim = _give_way(state, request, model, tenant, state.places, limits.max_waiting_total, None)
        if victim is None:
            return Verdict("queue_full")
    excess = books.waiting_bytes + request.size_bytes - limits.max_waiting_bytes
    if victim is not None:
        excess -= victim.size_bytes
    if excess > 0 and (own_full or not _may_take_bytes(state, request, tenant)):
        return Verdict("queue_bytes_full")
    if own_full:
        return Verdict("tenant_queue_full")
    if line.spec.refuse_hopeless and line.count and model.speed.known and not model.route.has_open:
        ahead = (place.ahead(request.class_offset_s) if place is not None else 0) + 1
        if ahead > 1:  # the first of its tenant is never hopeless: too little is certain about one departure
            wait_s = model.wait_s(tenant, ahead, line, at_best=True)
            if is_hopeless(wait_s, ahead, request.deadline_at - now):
                return Verdict("deadline_unreachable")
    if victim is None and not claims and line.claims.due:
        kept = min(line.claims.due, limit // 2)
        mine = line.places.amounts.get(tenant, 0)
        share = line.places.share_per_weight(tenant, limit - kept) * tenant.weight
        if line.count + kept >= limit and mine >= share:
            return Verdict("queue_full")
    if victim is None and excess <= 0:
        return _ENTER
    return Verdict(None, victim, excess > 0)


def _own_full(line: Line, tenant: Tenant, waiting: int, claims: bool) -> bool:
    """Whether a bound of the tenant's own leaves no place, beside those that are kept for its callers who come back."""
    bound, per_line = tenant.max_waiting, line.spec.max_waiting_per_tenant
    if bound is None and per_line is None:
        return False
    due = 0 if claims else line.own_claims.due(tenant.name)
    return (bound is not None and tenant.waiting + min(due, bound // 2) >= bound) or (
        per_line is not None and waiting + min(due, per_line // 2) >= per_line
    )


def _give_way(
    state: State,
    request: Request,
    model: Served,
    tenant: Tenant,
    places: Places,
    limit: int,
    within: Line | None,
) -> Request | None:
    """Return the waiter whose place `tenant` may take where `places` are full, None if nobody has to give way."""
    rival = places.most(_within_reserve)
    if rival is None or rival is tenant:
        return None
    theirs = places.amounts[rival]
    if tenant.reserved and tenant.held + tenant.waiting + request.width <= tenant.reserved:
        return _newest(rival, within)  # and so will this: it needs a place for that
    held = places.amounts.get(tenant, 0)
    due = places.share_per_weight(tenant, limit)
    if held >= due * tenant.weight:
        return None
    if theirs <= due * rival.weight:
        return None
    victim = _newest(rival, within)
    if victim is None:
        return None
    if theirs / rival.weight <= (held + 1) / tenant.weight:
        # No better balance of places: only for somebody who is ahead of the victim in the order of service.
        queue = model.pool.queue
        if victim._lane is None or state.models[victim.model].pool is not model.pool:
            return None
        mine = queue.lifted(tenant, model, request)
        if mine >= victim._lane.flow.service + victim._lane.offset:
            return None
    return victim


def _within_reserve(tenant: Tenant) -> bool:
    """Whether all that waits of it will be next, by its reserve: it keeps its places."""
    return 0 < tenant.reserved >= tenant.held + tenant.waiting


def _newest(tenant: Tenant, within: Line | None) -> Request | None:
    """Return the newest displaceable waiter of `tenant`, in one line or in all of them."""
    if within is not None:
        place = tenant.lines.get(within)
        return place.newest() if place is not None else None
    newest: Request | None = None
    for place in tenant.lines.values():
        request = place.newest()
        if request is not None and (newest is None or request._seq > newest._seq):
            newest = request
    return newest


def _may_take_bytes(state: State, request: Request, tenant: Tenant) -> bool:
    """Whether the request is within its tenant's share of the bytes, so that others who are above theirs give way."""
    room = state.limits.max_waiting_bytes - state.books.exempt_bytes
    held = state.bytes.amounts.get(tenant, 0)
    return (
        room > 0 and held + request.size_bytes <= state.bytes.share_per_weight(tenant, room) * tenant.weight
    )


def next_to_give_bytes(state: State, tenant: Tenant) -> Request | None:
    """Return the newest waiter of the tenant with the most bytes by weight; None if that is `tenant` itself."""
    rival = state.bytes.most()
    return None if rival is None or rival is tenant else _newest(rival, None)
