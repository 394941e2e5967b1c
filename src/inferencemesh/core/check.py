"""The invariants, each held against what it counts, by brute force. For tests, explorers and diagnosis.

Nothing here is used to decide. What the books say is recomputed from the queues, heaps and leases themselves.
"""

from __future__ import annotations

from collections import Counter

from inferencemesh.core.breaker import BreakerState
from inferencemesh.core.dispatch import servable
from inferencemesh.core.line import Line
from inferencemesh.core.pool import Pool
from inferencemesh.core.request import InvariantError, LeaseState, Request, RequestState
from inferencemesh.core.slots import Backend
from inferencemesh.core.state import State
from inferencemesh.core.view import waiters


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)


def check(state: State) -> None:
    """Verify the invariant above all others, and those that the scheduler promises.

    Raises:
        InvariantError: with what does not hold.
    """
    waiting: list[Request] = []
    for pool in state.pools:
        waiting += _check_pool(state, pool)
    _check_books(state, waiting)
    for backend in state.backends.values():
        _check_backend(state, backend)
    for model in state.models.values():
        mine = [request for request in waiting if request.model == model.name]
        for line in model.all_lines:
            _check_line(line, [request for request in mine if model.line_of(request) is line])
        _must(model.waiting == len(mine), f"{model.name}: {model.waiting} waiting, {len(mine)} in its lines")
        for kind in (model.usual, *model.prospects.values()):
            alike = sum(1 for request in mine if model.prospects_of(request) is kind)
            _must(
                len(kind.paces) == 1 or kind.paces[-1].waiting == alike,
                f"{model.name}: a pace and its waiters disagree",
            )
    _check_tenants(state, waiting)
    _check_groups(state, waiting)
    for pool in state.pools:
        _check_work_conserving(state, pool)


def _check_books(state: State, waiting: list[Request]) -> None:
    books = state.books
    ended = sum(books.ended.values())
    _must(books.accepted == books.waiting + books.running + ended, f"accepted {books.accepted} is not all")
    _must(books.waiting == len(waiting), f"{books.waiting} waiting in the books, {len(waiting)} in the lines")
    sizes = sum(request.size_bytes for request in waiting)
    exempt = sum(request.size_bytes for request in waiting if request._exempt)
    _must(books.waiting_bytes == sizes, f"{books.waiting_bytes} bytes in the books, {sizes} in the lines")
    _must(books.exempt_bytes == exempt, "bytes of those outside the bound")
    held = sum(backend.held for backend in state.backends.values())
    collecting = sum(request.width for pool in state.pools for request in pool.collecting)
    _must(
        books.held == held + collecting, f"{books.held} slots held in the books, {held}+{collecting} in truth"
    )
    leases = sum(pool.queue.held - len(pool.collecting) for pool in state.pools)
    _must(books.grants == books.settled + leases, f"grants {books.grants} != {books.settled} + {leases}")
    _must(min(books.waiting, books.running, books.waiting_bytes, books.held) >= 0, "a count is negative")
    places = Counter(request.tenant for request in waiting if not request._exempt)
    _must({t.name: n for t, n in state.places.amounts.items()} == dict(places), "places over the process")
    for request in waiting:
        _must(request.state is RequestState.WAITING, f"{request!r} is in a line")
        _must(request.outcome is None, f"{request!r} has an outcome and waits")
    in_heap = Counter(entry[2] for entry in state.expiries._heap if entry[0] == entry[2]._expires_at)
    _must(all(in_heap[request] >= 1 for request in waiting), "a waiter without an expiry")
    _must(len(state.expiries) <= 2 * books.waiting + 66, "tombstones among the expiries")
    most = state.limits.max_running
    _must(most is None or books.held <= most, "more held than over all backends allowed")


def _check_backend(state: State, backend: Backend) -> None:
    name = backend.name
    _must(backend.running >= 0 and backend.draining >= 0, f"{name}: negative")
    _must(backend.draining == sum(lease.width for lease in backend.drains), f"{name}: draining")
    _must(all(lease.state is LeaseState.DRAINING for lease in backend.drains), f"{name}: a drain is not")
    _must(backend.proven is None or 0 <= backend.proven < backend.slots, f"{name}: believed {backend.proven}")
    _must(0 <= backend.open <= max(0, backend.capacity - backend.held), f"{name}: open {backend.open}")
    before = backend.open
    backend.refresh()
    _must(backend.open == before, f"{name}: open was {before} and should be {backend.open}")
    timed = backend.next_change_at() < float("inf")
    _must((backend in state.timed) == timed, f"{name}: its next change is not watched")
    _must(state.next_change_at <= backend.next_change_at(), f"{name}: its next change comes unnoticed")
    if backend.reserved_for is not None:
        item = state.pool_of[backend].collecting.get(backend.reserved_for)
        _must(item is not None and item.backend is backend, f"{name}: reserved for nobody")
        width = backend.reserved_for.width
        _must(backend.usable and backend.capacity >= width, f"{name}: reserved in vain")
        _must(backend.open < width, f"{name}: collected and not granted")
    if backend.breaker.state is not BreakerState.CLOSED and backend.usable:
        for model in state.models_of[backend]:
            closed = [b for b in model.route.backends if b.usable and b.breaker.state is BreakerState.CLOSED]
            _must(bool(closed), f"{model.name}: every usable breaker is open")


def _check_line(line: Line, waiting: list[Request]) -> None:
    name = line.spec.name
    _must(line.count == len(waiting), f"{name}: depth {line.count}, {len(waiting)} in the line")
    counts = Counter(request.tenant for request in waiting)
    _must({t.name: p.count for t, p in line.tenants.items()} == dict(counts), f"{name}: depth by tenant")
    places = Counter(request.tenant for request in waiting if not request._exempt)
    _must({t.name: n for t, n in line.places.amounts.items()} == dict(places), f"{name}: places by tenant")
    weights = sum(tenant.weight for tenant in line.places.amounts)
    _must(abs(line.places.weights - weights) <= 1e-6 * max(1.0, weights), f"{name}: weights")
    if line.spec.max_waiting is not None:
        _must(line.places.total <= line.spec.max_waiting, f"{name}: longer than its bound")
    for place in line.tenants.values():
        mine = [request for request in waiting if request._place is place]
        _must(len(mine) == place.count, f"{name}: {place.tenant.name} counts another's places")
        offsets = {place.offset: place.count} if place.offsets is None else place.offsets
        classes = Counter(request.class_offset_s for request in mine)
        _must(offsets == dict(classes), f"{name}: classes of {place.tenant.name}")
        free = [request for request in mine if not request._exempt]
        newest = max(free, key=lambda request: request._seq, default=None)
        _must(place.newest() is newest and len(free) == place.displaceable, f"{name}: the newest waiter")
        _must(len(place._newest) <= 2 * place.displaceable + 17, f"{name}: tombstones of {place.tenant.name}")


def _check_pool(state: State, pool: Pool) -> list[Request]:
    """Verify one fair line; return its waiters, the collecting ones among them."""
    queue = pool.queue
    line = waiters(queue)
    _must(not pool.dirty, "a pool was left unserved")
    _must(queue.waiting == len(line), f"fair line: {queue.waiting} counted, {len(line)} there")
    _must(queue.held == sum(flow.held for flow in queue.flows.values()), "fair line: held")
    for tenant, flow in queue.flows.items():
        _must(flow.tenant is tenant and tenant.flows.get(queue) is flow, f"{tenant.name}: flow")
        _must(flow.waiting == sum(lane.live for lane in flow.lanes.values()), f"{tenant.name}: lanes")
        _must(flow.idle or state.tenants.get(tenant.name) is tenant, f"{tenant.name} is forgotten and active")
        _must(not flow.idle or flow.resting, f"{tenant.name} is idle and never forgotten")
        known = state.tenants.get(tenant.name) is tenant
        _must(tenant.known == known, f"{tenant.name}: whether it is remembered")
        last, lane_last = tenant.latest, flow.latest
        _must(last is None or tenant.flows.get(last.queue) is last, f"{tenant.name}: a flow that is gone")
        _must(
            lane_last is None or flow.lanes.get(lane_last.need) is lane_last,
            f"{tenant.name}: a lane that is gone",
        )
        for lane in flow.lanes.values():
            live = sum(1 for entry in lane.heap if entry[2]._lane is lane)
            _must(lane.live == live, f"{tenant.name}: depth of a lane")
            _must(len(lane.heap) <= 2 * lane.live + 17, f"{tenant.name}: tombstones")
            _must(bool(lane.stamp) == (bool(live) and not tenant.parked), f"{tenant.name}: eligibility")
            if lane.stamp:
                valid = [entry for entry in lane.need.heap if entry[3] is lane and entry[2] == lane.stamp]
                _must(len(valid) == 1, f"{tenant.name}: lost its entry")
                _must(
                    valid[0][:2] == (lane.key, lane.number), f"{tenant.name}: its entry says something else"
                )
                key, number = flow.service + lane.offset, lane.head()._seq
                _must((lane.key, lane.number) <= (key, number), f"{tenant.name}: entry behind its key")
    for need in queue._active:
        lanes = [flow.lanes[need] for flow in queue.flows.values() if need in flow.lanes]
        _must(need.lanes == sum(1 for lane in lanes if lane.live) > 0, "a need's lanes")
        _must(need.eligible == sum(1 for lane in lanes if lane.stamp), "a need's eligible lanes")
        _must(len(need.heap) <= 3 * need.eligible + 65, "tombstones in a need")
    for request, item in pool.collecting.items():
        _must(item.backend.reserved_for is request is item.request, f"{request!r} collects nowhere")
        _must(request._reserved is item.backend and request._lane is None, f"{request!r} is in two lines")
    for request in pool.resting:
        _must(request._lane is None and request._alarm_at is not None, f"{request!r} rests for ever")
    return line + list(pool.collecting) + list(pool.resting)


def _check_tenants(state: State, waiting: list[Request]) -> None:
    for tenant in state.tenants.values():
        mine = [request for request in waiting if request.tenant == tenant.name]
        collecting = sum(request.width for request in mine if request._reserved is not None)
        _must(tenant.waiting == len(mine), f"{tenant.name}: {tenant.waiting} waiting, {len(mine)} in lines")
        _must(tenant.collecting == collecting, f"{tenant.name}: collecting")
        _must(min(tenant.running, tenant.draining) >= 0, f"{tenant.name}: negative")
        _must(set(tenant.lines) == {request._line for request in mine}, f"{tenant.name}: lines")
        if tenant.max_running is not None:
            _must(tenant.held <= tenant.max_running, f"{tenant.name}: over its own limit")
            full = tenant.held >= tenant.max_running
            head = tenant.parked_for
            _must(tenant.parked == (full or head is not None), f"{tenant.name}: parked {tenant.parked}")
            _must(
                head is None or (head in mine and not tenant.room_for(head.width)), f"{tenant.name}: parked"
            )
        else:
            _must(not tenant.parked, f"{tenant.name}: parked without a limit")
        if tenant.max_waiting is not None:
            bound = sum(1 for request in mine if not request._exempt)
            _must(bound <= tenant.max_waiting, f"{tenant.name}: more waiting than it may")
        _must(tenant.configured or not tenant.idle, f"{tenant.name}: remembered for nothing")
    running = sum(tenant.running for tenant in state.tenants.values())
    draining = sum(tenant.draining for tenant in state.tenants.values())
    _must(running == sum(b.running for b in state.backends.values()), "running by tenant and by backend")
    _must(draining == sum(b.draining for b in state.backends.values()), "draining by tenant and by backend")


def _check_groups(state: State, waiting: list[Request]) -> None:
    for group in state.groups.values():
        limit = group.max_running
        _must(limit is None or group.held <= limit, f"{group!r} is over its limit of {limit}")
        first = group.waits_for
        _must(first is None or first in waiting, f"{group!r} waits for one that is gone")
        _must(first is None or not group.room_for(first.width), f"{group!r} waits, and has room")


def _check_work_conserving(state: State, pool: Pool) -> None:
    """No free slot that is not set aside, while somebody eligible fits (contract D2)."""
    most = state.limits.max_running
    for request, item in pool.collecting.items():
        elsewhere = state.models[request.model].route.pick(request.width, request.avoid)
        _must(elsewhere is None, f"{request!r} collects on {item.backend!r} and fits on {elsewhere!r}")
    for request in waiters(pool.queue):
        lane = request._lane
        if lane is None or lane.flow.tenant.parked:
            continue
        if most is not None and state.books.held + request.width > most:
            continue
        group = request._class
        if group is not None and not (group.admits and group.room_for(request.width)):
            continue
        model = state.models[request.model]
        fits = model.route.pick(request.width, request.avoid)
        if fits is not None and most is not None:
            # One whose turn it is and who is too wide for the bound over all backends holds everybody up.
            winner = pool.queue.winner(servable)
            _must(winner is not None and state.books.held + winner.head().width > most, f"{request!r} fits")
            continue
        _must(fits is None, f"{request!r} fits on {fits!r} and waits")
        collects = model.route.collectable(request.width, request.avoid) if request.width > 1 else None
        if collects is not None and most is not None:
            continue
        _must(collects is None, f"{request!r} could collect on {collects!r} and does not")
