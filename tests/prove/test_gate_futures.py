"""What admission decides reaches the one who waits for it, and a grant that nobody takes is given back (A5, B3)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from inferencemesh.core.admission import Admission
from inferencemesh.core.errors import MeshError
from inferencemesh.core.events import Event
from inferencemesh.core.model import BackendSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Outcome, Phase
from inferencemesh.core.request import LeaseState, Request, RequestState
from inferencemesh.runtime.gate import Gate
from tests.virtual.loop import VirtualLoop, run

GONE = Outcome(Phase.BEFORE_HEADERS, "client_gone")


def raising(_: Event) -> None:
    raise RuntimeError("a metric is broken")


def in_a_gate(
    main: Callable[[Gate], Awaitable[None]],
    *,
    places: int = 4,
    emit: Callable[[Event], None] = lambda _: None,
) -> None:
    """Run `main` with a gate to one slot and a short line, under virtual time; then nothing may be left."""
    loop = VirtualLoop(3)

    async def whole() -> None:
        admission = Admission(
            [BackendSpec("b", 1)],
            [ModelSpec("m", ("b",), max_waiting=places, queue_timeout_s=10.0)],
            [TenantSpec("t"), TenantSpec("u")],
            Limits(),
            rng=random.Random(1),
        )
        gate = Gate(admission, loop=loop, emit=emit, bug=lambda *_: None)
        await main(gate)
        admission.check()
        totals = admission.snapshot(loop.time()).totals
        assert totals.grants == totals.settled
        assert totals.waiting == totals.running == 0
        assert gate._waiting == {}
        gate.close()

    run(loop, whole())


def ask(gate: Gate, name: str, tenant: str = "t", ttl: float = 600.0) -> Request:
    now = gate._loop.time()
    request = Request(name, tenant, "m", arrived_at=now, deadline_at=now + ttl)
    gate.offer(request)
    return request


def end(gate: Gate, request: Request) -> None:
    assert request.lease is not None
    gate.release(request.lease)
    gate.settle(request, GONE)


def test_a_released_slot_reaches_the_one_who_waits() -> None:
    async def main(gate: Gate) -> None:
        first, second = ask(gate, "1"), ask(gate, "2")
        waits = asyncio.ensure_future(gate.granted(second))
        await asyncio.sleep(1)
        assert not waits.done()
        end(gate, first)
        lease = await asyncio.wait_for(waits, 1)
        assert lease is second.lease
        end(gate, second)

    in_a_gate(main)


def test_a_broken_metric_costs_nobody_its_grant() -> None:
    async def main(gate: Gate) -> None:
        first, second = ask(gate, "1"), ask(gate, "2")
        waits = asyncio.ensure_future(gate.granted(second))
        await asyncio.sleep(1)
        end(gate, first)
        await asyncio.wait_for(waits, 1)
        end(gate, second)

    in_a_gate(main, emit=raising)


def test_who_is_displaced_hears_of_it_at_once() -> None:
    async def main(gate: Gate) -> None:
        first, second, third = ask(gate, "1"), ask(gate, "2"), ask(gate, "3")
        waits = asyncio.ensure_future(gate.granted(third))
        other = ask(gate, "4", "u")
        with pytest.raises(MeshError) as told:
            await asyncio.wait_for(waits, 1)
        assert told.value.code == "displaced"
        gate.settle(third, GONE)
        for request in (first, other, second):
            end(gate, request)

    in_a_gate(main, places=2)


def test_who_waits_too_long_hears_of_it_by_itself() -> None:
    async def main(gate: Gate) -> None:
        first, second, third = ask(gate, "1"), ask(gate, "2", ttl=5.0), ask(gate, "3")
        began_at = gate._loop.time()
        for request, code, after_s in ((second, "deadline_exceeded", 5.0), (third, "queue_timeout", 10.0)):
            with pytest.raises(MeshError) as told:
                await asyncio.wait_for(gate.granted(request), 60)
            assert told.value.code == code
            assert gate._loop.time() - began_at == pytest.approx(after_s)
            gate.settle(request, GONE)
        end(gate, first)

    in_a_gate(main)


def test_a_grant_in_the_turn_of_a_cancellation_is_given_back() -> None:
    async def main(gate: Gate) -> None:
        first, second, third = ask(gate, "1"), ask(gate, "2"), ask(gate, "3")
        waits = [asyncio.ensure_future(gate.granted(request)) for request in (second, third)]
        await asyncio.sleep(1)
        end(gate, first)  # the second has the slot, and its task does not know yet
        assert second.state is RequestState.RUNNING
        waits[0].cancel()
        await asyncio.wait(waits[:1])
        assert second.lease is not None
        assert second.lease.state is LeaseState.FREED
        gate.settle(second, GONE)
        await asyncio.wait_for(waits[1], 1)
        end(gate, third)

    in_a_gate(main)


def test_a_waiter_that_leaves_makes_room_and_is_not_granted() -> None:
    async def main(gate: Gate) -> None:
        first, second = ask(gate, "1"), ask(gate, "2")
        waits = asyncio.ensure_future(gate.granted(second))
        await asyncio.sleep(1)
        gate.settle(second, GONE)
        await asyncio.wait([waits])
        assert waits.cancelled()
        third = ask(gate, "3")
        end(gate, first)
        assert third.lease is await gate.granted(third)
        end(gate, third)

    in_a_gate(main, places=1)


def test_a_request_that_came_back_is_granted_again() -> None:
    async def main(gate: Gate) -> None:
        first, second = ask(gate, "1"), ask(gate, "2")
        assert first.lease is not None
        gate.drain(first.lease)
        gate.requeue(first.lease, full=False)
        waits = asyncio.ensure_future(gate.granted(first))
        await asyncio.sleep(1)
        assert not waits.done()
        old = first.lease
        gate.confirm(old, "ended")
        assert await asyncio.wait_for(waits, 1) is not old
        end(gate, first)
        await gate.granted(second)
        end(gate, second)

    in_a_gate(main)
