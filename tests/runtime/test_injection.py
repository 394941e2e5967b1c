"""Contract B2: settled exactly once, whatever fails wherever.

The points of failure are found and not listed: a clean run counts them, then each is made to fail in a gateway of
its own, which must serve another request afterwards. Two kinds:

- *call-outs*: each call that the request path (`app`, `exchange`, `attempt`, `drain`) makes into other parts of the
  package (tracker, scanner, renderer, header filter, telemetry, engine adapter, responder, connection, pool) raises;
- *awaits*: each suspension of the exchange's task is cancelled.

After each: every book is balanced, nothing is held, no task, no connection and no body byte is left, and the caller
got an end: an answer, an error or a closed connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import inferencemesh
from inferencemesh.runtime.exchange import Exchange
from inferencemesh.serving.gateway import Gateway
from inferencemesh.sim.server import SimServer
from tests.contract.support import chat, post
from tests.runtime.inprocess import describe, settled, wait_for, world

PACKAGE = Path(inferencemesh.__file__).parent
CALLERS = {str(PACKAGE / "runtime" / name) for name in ("app.py", "exchange.py", "attempt.py", "drain.py")}
# The state machine and the gate are what everything is settled with: that they do not fail is for their own tests.
# `finalize` and what it is made of is the net itself; the calls that it makes are points like all others.
NOT_POINTS = {
    "runtime/gate.py",
    "runtime/drain.py",
    "runtime/exchange.py",
    "runtime/attempt.py",
    "runtime/app.py",
}
PLACES = ("wire", "telemetry", "runtime/http1", "runtime/engines", "runtime/upstream.py", "auth")

SHAPES: dict[str, tuple[bytes, str]] = {
    "stream": (chat("tokens=3"), "take"),
    "plain": (chat("tokens=3", stream=False), "take"),
    "fails-before": (chat("status=503"), "take"),
    "cut-after": (chat("cut=after:2"), "take"),
    "error-after": (chat("error=after:2"), "take"),
    "full": (chat("full"), "take"),
    "leaves": (chat("tokens=200 interval=5ms"), "leave"),
    "leaves-silent": (chat("hang=headers"), "leave"),
    "reused": (chat("tokens=3"), "take"),
    "bad-request": (b"{", "take"),
}
WARM = {"reused"}  # a request has come before, and its connection to the backend is kept
PLAIN = chat("tokens=3", stream=False), "take"
AWAITING = [shape for shape in SHAPES if shape not in ("bad-request", "reused")]  # those have no task
RETRIES = {"attempts": 2, "budget": 1, "on": ["connect", 502, 503]}


class InjectedError(Exception):
    """The failure that a test made."""


class Points:
    """Counts the call-outs while it is installed, and makes the one with number `fail_at` raise."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.fail_at = fail_at
        self.seen: list[str] = []
        self.failed: str | None = None
        self._is_point: dict[CodeType, bool] = {}

    def __enter__(self) -> Points:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        point = self._is_point.get(code)
        if point is None:
            point = self._is_point[code] = is_call_out(code)
        caller = frame.f_back
        if not point or caller is None or caller.f_code.co_filename not in CALLERS:
            return
        name = f"{code.co_qualname} from {caller.f_code.co_qualname}"
        self.seen.append(name)
        if self.fail_at is not None and len(self.seen) - 1 == self.fail_at:
            self.failed = name
            raise InjectedError(name)


def is_call_out(code: CodeType) -> bool:
    if not code.co_filename.startswith(str(PACKAGE)):
        return False
    inner = code.co_filename.removeprefix(str(PACKAGE) + "/")
    if code.co_qualname == "IncomingRequest.release_body":
        return False  # gives memory back: like the gate, it is what the rest is cleaned up with
    # A generator's frame is entered again at each step, a comprehension is no call.
    return inner.startswith(PLACES) and inner not in NOT_POINTS and not code.co_name.startswith("<")


async def caller(port: int, body: bytes, then: str, began: Callable[[], bool]) -> bytes:
    """One caller; returns what it got until the end. It never waits longer than the gateway may take."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(post(body, "connection: close"))
        if then == "leave":
            await wait_for(began, lambda: "the request did not begin")
            return b""
        return await asyncio.wait_for(reader.read(-1), 20)
    except ConnectionError:
        return b"reset"
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def small_world(shape: str) -> AsyncIterator[tuple[Gateway, SimServer]]:
    """A gateway for one run of a shape, so that every run has the same points. What is left behind shows in the
    request after it."""
    async with world(
        retries=RETRIES,
        timeouts={"cleanup": "300ms", "total": "1500ms"},
        models=[model(timeout="300ms")],
        backend={"breaker": {"min_requests": 1_000_000}},
    ) as (gateway, sim):
        if shape in WARM:
            assert await one_run(gateway, sim, PLAIN, Points()) == []
        yield gateway, sim
        assert await one_run(gateway, sim, PLAIN, Points()) == []


async def one_run(gateway: Gateway, sim: SimServer, asked: tuple[bytes, str], points: Points) -> list[str]:
    """One request with its points under watch; returns the bugs that were logged."""
    body, then = asked
    before = asyncio.all_tasks()
    accepted = gateway.snapshot().totals.accepted
    bugs: list[str] = []
    gateway.services.bug = lambda what, bug: bugs.append(f"{what}: {bug!r}")
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(str(context)))

    def began() -> bool:
        # It runs at the backend, or it has come to its end already.
        ended = points.failed is not None or gateway.snapshot().totals.accepted > accepted
        return bool(sim.state()["running"]) or (ended and not gateway.live)

    with points:
        answer = await caller(gateway.port, body, then, began)
        await wait_for(
            lambda: not gateway.live, lambda: f"left after {points.failed}: {describe(gateway)} {bugs}"
        )
    await settled(gateway)
    await wait_for(lambda: asyncio.all_tasks() <= before, lambda: asyncio.all_tasks() - before)
    await wait_for(lambda: gateway.http.connections == 0, lambda: "a connection is left")
    # That `read` returned is the end that the caller got; what it holds is an answer, or nothing at all.
    assert answer in (b"", b"reset") or answer.startswith(b"HTTP/1.1 "), answer
    return bugs


def model(timeout: str) -> dict[str, Any]:
    return {"name": "demo", "backends": ["sim"], "queue": {"max_waiting": 16, "timeout": timeout}}


async def raise_at(shape: str, number: int | None) -> Points:
    """A request of this shape whose call-out with this number raises."""
    points = Points(number)
    async with small_world(shape) as (gateway, sim):
        bugs = await one_run(gateway, sim, SHAPES[shape], points)
        assert number is not None or bugs == []
    return points


async def raise_at_each(shape: str) -> tuple[list[str], list[str]]:
    """Count the call-outs of a request of this shape, then make each raise; returns the counted and the failed."""
    counted = (await raise_at(shape, None)).seen
    runs = [await raise_at(shape, number) for number in range(len(counted))]
    return counted, [points.failed for points in runs if points.failed is not None]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_call_out_may_raise(shape: str):
    counted, failed = asyncio.run(raise_at_each(shape))
    assert len(counted) >= (5 if shape == "bad-request" else 15), counted
    assert missed(shape, len(counted), len(failed)) == 0, (counted, failed)


def missed(shape: str, counted: int, hit: int) -> int:
    """How many points were not come to. Who leaves, and who comes back after a time, may miss the last ones."""
    return max(0, counted - hit - (3 if shape.startswith(("leaves", "full")) else 0))


class Cancelling:
    """Drives the exchange's coroutine and cancels it at its suspension number `cancel_at`."""

    def __init__(self, cancel_at: int | None) -> None:
        self.cancel_at = cancel_at
        self.suspensions = 0
        self.cancelled = False

    def wrap(self, coroutine: Any) -> Any:
        watch = self

        class Driver:
            def __await__(self) -> Generator[Any, Any, Any]:
                value: Any = None
                step: Callable[..., Any] = coroutine.send
                while True:
                    try:
                        yielded = step(value)
                    except StopIteration as stop:
                        return stop.value
                    number = watch.suspensions
                    watch.suspensions += 1
                    if number == watch.cancel_at and not watch.cancelled:
                        watch.cancelled = True
                        # As a task does it: what it waits for is cancelled, too, and may have a descriptor to forget.
                        if yielded is None or not yielded.cancel():
                            if yielded is not None:
                                yielded._asyncio_future_blocking = False
                            value, step = asyncio.CancelledError(), coroutine.throw
                            continue
                    try:
                        value, step = (yield yielded), coroutine.send
                    except BaseException as thrown:
                        value, step = thrown, coroutine.throw

        async def run() -> None:
            await Driver()

        return run()


async def cancel_at(shape: str, number: int | None) -> Cancelling:
    """A request of this shape whose suspension with this number is cancelled."""
    cancelling = Cancelling(number)
    original = Exchange.run
    async with small_world(shape) as (gateway, sim):
        Exchange.run = lambda self: cancelling.wrap(original(self))  # type: ignore[method-assign]
        try:
            await one_run(gateway, sim, SHAPES[shape], Points())
        finally:
            Exchange.run = original  # type: ignore[method-assign]
    return cancelling


async def cancel_at_each(shape: str) -> tuple[int, int]:
    """Count the suspensions of a request of this shape, then cancel each; returns how many and how many were hit."""
    counted = (await cancel_at(shape, None)).suspensions
    runs = [await cancel_at(shape, number) for number in range(counted)]
    return counted, sum(cancelling.cancelled for cancelling in runs)


@pytest.mark.parametrize("shape", AWAITING)
def test_every_await_may_be_cancelled(shape: str):
    counted, hit = asyncio.run(cancel_at_each(shape))
    assert counted >= 1
    assert missed(shape, counted, hit) == 0, (counted, hit)


def test_a_task_that_is_cancelled_before_its_first_step_is_settled():
    """Its coroutine never runs, so no `finally` in it does; the done callback is the net."""

    async def run() -> None:
        original = Exchange.start

        def start(self: Exchange) -> None:
            original(self)
            assert self.task is not None
            self.task.cancel()

        Exchange.start = start  # type: ignore[method-assign]
        try:
            async with small_world("plain") as (gateway, sim):
                await one_run(gateway, sim, SHAPES["plain"], Points())
                Exchange.start = original  # type: ignore[method-assign]
        finally:
            Exchange.start = original  # type: ignore[method-assign]

    asyncio.run(run())
