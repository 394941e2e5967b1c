"""Words and numbers of a refusal: what it says and when it is worth coming back (contract A10)."""

from __future__ import annotations

from inferencemesh.core.effects import Refusal
from inferencemesh.core.request import Request
from inferencemesh.core.served import Served
from inferencemesh.core.tenant import Tenant

_LATER = "; come back after the time in Retry-After"

MESSAGES: dict[str, str] = {
    "queue_full": "every slot is busy and the line has no place for this request" + _LATER,
    "queue_bytes_full": "every slot is busy and waiting requests take up all the memory they may" + _LATER,
    "tenant_queue_full": "you have as many requests waiting as you may" + _LATER,
    "deadline_unreachable": "no slot will be free before the request's deadline" + _LATER,
    "queue_timeout": "waited too long for a free slot" + _LATER,
    "deadline_exceeded": "the request's deadline has passed",
    "displaced": "the line is full and this place went to a caller with less than its share" + _LATER,
    "no_backend": "no backend of this model is available now" + _LATER,
    "shutting_down": "the service is shutting down" + _LATER,
}

_SPREAD_S = {"no_backend": (1.0, 5.0), "shutting_down": (1.0, 5.0), "invalid_request": (1.0, 1.0)}
"""Where the line's speed says nothing: come back within these bounds, not together."""

_WOULD_HAVE_WAITED = frozenset(
    {"queue_full", "queue_bytes_full", "tenant_queue_full", "deadline_unreachable"}
)


TURNS = 2.0
"""A place that is taken so many grants before a ticket is due may not be free again by then."""

_KEEPS_A_PLACE = frozenset({"queue_full", "displaced", "queue_timeout", "deadline_unreachable"})
"""Refusals for which a place in the line is kept. Behind a bound of the tenant's own it is one of the tenant's."""


def refuse(code: str, request: Request, model: Served, tenant: Tenant, now: float) -> Refusal:
    """Return the refusal of a newcomer, or of a waiter that is settled by now; draws its ticket for coming back."""
    line = request._line or model.line_of(request)
    message = MESSAGES.get(code, code)
    place: int | None = None
    estimate_s: float | None = None
    if code in _WOULD_HAVE_WAITED:
        place = line.count + 1
        estimate_s = model.told_wait_s(request, tenant, line, now)
    elif code == "invalid_request":
        message = (
            f"the request needs {request.width} slots at once, and can have {model.widest(request, tenant)} at most; "
            "ask for fewer sequences (`n`)"
        )
    spread = _SPREAD_S.get(code)
    tickets = model.prospects_of(request).tickets
    retry_after_s = (
        model.retry_after_s(request, tenant, now, line) if spread is None else tickets.spread(*spread)
    )
    quiet_s = model.quiet_s(now)
    if quiet_s > 0 and spread is None:
        # Every backend has asked to be left alone until then: no caller is told to come back earlier.
        retry_after_s = min(60.0, max(retry_after_s, quiet_s + tickets.spread(0.0, 1.0)))
    if model.spec.keeps_places:
        # Of fewer than two places none is kept, but who finds one is counted all the same.
        if code in _KEEPS_A_PLACE:
            line.claims.add(tenant.name, now + retry_after_s, TURNS / model.pace_of(request, now))
        elif code == "tenant_queue_full":
            per_s = model.pace_of(request, now) * model.share_of_speed(tenant, line)
            line.own_claims.add(tenant.name, now + retry_after_s, now, TURNS / per_s)
    return Refusal(code, message, retry_after_s, place, estimate_s)
