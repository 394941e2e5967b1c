"""Reading the state out as plain values (contract F2)."""

from __future__ import annotations

from inferencemesh.core.fairqueue import FairQueue
from inferencemesh.core.outcome import Kind
from inferencemesh.core.request import Request
from inferencemesh.core.served import Served
from inferencemesh.core.snapshot import BackendView, LineView, Snapshot, TenantView, Totals
from inferencemesh.core.state import State


def waiters(queue: FairQueue) -> list[Request]:
    """Return all requests in a fair line, collecting ones aside, in no order."""
    return [
        entry[2]
        for flow in queue.flows.values()
        for lane in flow.lanes.values()
        for entry in lane.heap
        if entry[2]._lane is lane
    ]


def _by_tenant(model: Served) -> dict[str, int]:
    counts: dict[str, int] = {}
    for line in (model.line, *model.lines.values()):
        for tenant, place in line.tenants.items():
            counts[tenant.name] = counts.get(tenant.name, 0) + place.count
    return counts


def view(state: State, now: float) -> Snapshot:
    """Return the snapshot of `state` at `now`."""
    oldest: dict[str, float] = {}
    for pool in state.pools:
        for request in [*waiters(pool.queue), *pool.collecting, *pool.resting]:
            age_s = request.waited_s + now - request._queued_at
            if age_s > oldest.get(request.model, 0.0):
                oldest[request.model] = age_s
    backends = []
    for backend in state.backends.values():
        oldest_drain = next(iter(backend.drains), None)
        since = oldest_drain.draining_since if oldest_drain is not None else None
        reserved = backend.reserved_for
        backends.append(
            BackendView(
                name=backend.name,
                capacity=backend.slots,
                believed=backend.capacity,
                free=max(0, backend.capacity - backend.held),
                running=backend.running,
                draining=backend.draining,
                up=backend.up,
                cordoned=backend.cordoned,
                breaker=backend.breaker.state.value,
                draining_oldest_s=max(0.0, now - since) if since is not None else 0.0,
                reserved_for=reserved.id if reserved is not None else None,
            )
        )
    lines = tuple(
        LineView(
            model=model.name,
            total=model.waiting,
            oldest_s=oldest.get(model.name, 0.0),
            by_tenant=_by_tenant(model),
            limit=sum(model.limit(line) for line in model.all_lines),
            service_s=model.speed.service_s() if model.speed.completions else None,
            wait_s=(model.waiting + 1) / model.per_s() if model.speed.completions else None,
            returns_admitted=sum(line.claims.kept for line in model.all_lines),
            returns_refused=sum(line.claims.broken for line in model.all_lines),
        )
        for model in state.models.values()
    )
    tenants = tuple(
        TenantView(
            tenant.name, tenant.running, tenant.waiting, tenant.charged, tenant.draining, tenant.weight
        )
        for tenant in state.tenants.values()
    )
    books = state.books
    totals = Totals(
        accepted=books.accepted,
        completed=books.ended[Kind.COMPLETED],
        failed=books.ended[Kind.FAILED],
        cancelled=books.ended[Kind.CANCELLED],
        expired=books.ended[Kind.EXPIRED],
        refused=books.refused,
        running=books.running,
        waiting=books.waiting,
        grants=books.grants,
        settled=books.settled,
        waiting_bytes=books.waiting_bytes,
    )
    return Snapshot(now, tuple(backends), lines, tenants, totals)
