"""The caller has gone, the backend goes on: the scenarios C of docs/field-faults.md, by the counts of both sides."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.contract.support import Call, ask, chat, drive, post
from tests.faults.support import (
    CONFIRM,
    STREAM_HEAD,
    TOLD_S,
    Asked,
    World,
    delta,
    mesh_before,
    piece,
    raw_backend,
    tokens,
    world,
)

WAYS = ["leave", "reset", "half_close"]


def now() -> float:
    return asyncio.get_running_loop().time()


def never_more_than_the_books_hold(made: World) -> None:
    """What the backend works on is at most what the gateway counts as running or draining there."""
    view = made.slots()
    at_work = made.heard("running") + made.heard("waiting")
    assert at_work <= view.running + view.draining, (view, made.sim.state())


async def told(made: World, since: float) -> None:
    """The backend has seen the departure, in time."""
    await made.until(lambda: any(record["left_ms"] is not None for record in made.records()))
    assert now() - since < TOLD_S


@pytest.mark.parametrize("way", WAYS)
def test_C1_C12_a_stream_that_is_left_drains_until_its_end_is_confirmed(way):
    """100 tokens over 10 s, left after three: the backend hears of it, and its slot drains until it has stopped."""

    async def run() -> None:
        async with world(slots=1, backend=CONFIRM) as made:
            call = await made.open("tokens=100 interval=100ms linger=250ms")
            await tokens(call, 3)
            assert (made.slots().running, made.slots().draining) == (1, 0)
            async with made.watched(lambda: never_more_than_the_books_hold(made)):
                since = now()
                getattr(call, way)()
                await told(made, since)
                await made.until(lambda: made.slots().draining == 1)
                assert (made.slots().running, made.slots().free) == (0, 0)
                assert made.metric("slots", state="draining") == 1
                assert made.heard("running") == made.heard("lingering") == 1
                await made.settled()
            (record,) = made.records()
            assert record["state"] == "aborted"
            assert record["tokens"] < 10
            assert made.metric("drains_total", evidence="reported") == made.metric("drains_total") == 1
            assert made.metric("requests_total", phase="after_content", cause="client_gone") == 1
            call.leave()

    drive(run())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("script", "stream"),
    [
        pytest.param("first=30s early_role", True, id="C2-first-token-late"),
        pytest.param("hang=headers", True, id="C2-no-head"),
        pytest.param("hang=first", True, id="C7-head-and-nothing"),
        pytest.param("tokens=100 interval=200ms", False, id="C3-plain"),
        pytest.param("hang=headers", False, id="C3-plain-silent"),
        pytest.param("hang=after:2", False, id="C3-plain-half"),
    ],
)
def test_C2_C3_C7_a_departure_before_any_content_is_noticed(way, script, stream):
    """While the first token is awaited, behind the backend's head too, and in a plain request at any time."""

    async def run() -> None:
        async with world(slots=1) as made:
            call = await made.open(script, stream=stream)
            await made.until(lambda: made.heard("running") == 1)
            if script in ("first=30s early_role", "hang=first"):
                await made.until(
                    lambda: any(live.attempt and live.attempt.head_at for live in made.gateway.live)
                )
            since = now()
            getattr(call, way)()
            await told(made, since)
            await made.settled()
            assert (made.heard("aborted"), made.heard("received")) == (1, 1)
            assert made.metric("requests_total", phase="before_headers", cause="client_gone") == 1
            assert made.metric("cancellations_total", stage="before_headers") == 1
            assert made.totals.cancelled == made.totals.accepted == 1
            assert (await ask(made.port, chat("tokens=1"))).status == 200
            assert made.metric("admission_wait_seconds_count") == 0
            call.leave()

    drive(run())


def test_C5_capacity_returns_only_when_the_engine_has_stopped():
    """Eight streams are left, and the engine works on at each for a time of its own."""

    async def run() -> None:
        async with world(slots=8, engine_slots=16, backend=CONFIRM) as made:
            scripts = [f"tokens=5000 interval=20ms linger={60 * number}ms" for number in range(1, 9)]
            calls = [await made.open(script) for script in scripts]
            for call in calls:
                await tokens(call, 2)
            async with made.watched(lambda: never_more_than_the_books_hold(made)):
                for call in calls:
                    call.leave()
                await made.until(lambda: made.slots().draining == 8)
                assert made.slots().free == 0
                # As many again take the slots one by one, each as the engine gives it back.
                answers = await asyncio.gather(*(ask(made.port, chat("tokens=2")) for _ in range(8)))
                assert [answer.status for answer in answers] == [200] * 8
                await made.settled()
            assert made.heard("peak_running") == 8
            assert (made.heard("aborted"), made.heard("completed")) == (8, 8)
            assert made.metric("drains_total", evidence="reported") == made.metric("drains_total") == 8

    drive(run())


def test_C8_an_abort_that_the_engine_loses_reduces_capacity_until_it_has_stopped():
    """The engine works on for half a second; meanwhile the other slot serves alone."""

    async def run() -> None:
        async with world(slots=2, backend=CONFIRM, model={"queue": {"max_waiting": 50}}) as made:
            call = await made.open("tokens=5000 interval=20ms linger=500ms")
            await tokens(call)
            call.leave()
            await made.until(lambda: made.heard("lingering") == 1)
            during = 0

            def check() -> None:
                nonlocal during
                never_more_than_the_books_hold(made)
                if made.heard("lingering"):
                    during += 1
                    view = made.slots()
                    assert (view.draining, view.running + view.free) == (1, 1), view
                    assert made.metric("slots", state="draining") == 1
                    assert made.metric("slots", state="free") + made.metric("slots", state="running") == 1

            async with made.watched(check):
                served = 0
                while made.heard("lingering"):
                    answers = await asyncio.gather(*(ask(made.port, chat("tokens=2")) for _ in range(3)))
                    assert [answer.status for answer in answers] == [200] * 3
                    served += 3
                await made.settled()
            assert during > 10
            assert served > 3
            assert made.heard("peak_running") == 2, "work was sent into the slot of the dead"
            assert made.metric("drains_total", evidence="reported") == made.metric("drains_total") == 1
            both = [await made.open("hang=after:1") for _ in range(2)]
            for one in both:
                await tokens(one)
            assert made.slots().running == 2, "the whole capacity is back"

    drive(run())


def test_C10_a_request_that_waits_inside_the_backend_is_counted_until_it_is_over():
    """The backend works at one and lets three wait, and runs the dead among them all the same: no fifth comes."""

    async def run() -> None:
        async with world(
            slots=4, engine_slots=1, engine_queue=3, backend=CONFIRM, model={"queue": {"max_waiting": 8}}
        ) as made:
            first = await made.open("hang=after:1")
            await tokens(first)
            inside = [await made.open("tokens=20 interval=10ms ignore_disconnect") for _ in range(3)]
            await made.until(lambda: made.heard("waiting") == 3)
            async with made.watched(lambda: never_more_than_the_books_hold(made)):
                inside[1].leave()
                await made.until(lambda: made.slots().draining == 1)
                late = [await made.open("tokens=2") for _ in range(3)]
                await made.until(lambda: made.totals.waiting == 3)
                assert (made.heard("waiting"), made.heard("received")) == (3, 4), "more was sent than fits"
                assert (made.slots().running, made.slots().draining, made.slots().free) == (3, 1, 0)
                first.leave()
                for call in (inside[0], inside[2], *late):
                    answer = await call.answer()
                    assert (answer.status, answer.cut) == (200, False)
                    call.leave()
                await made.settled()
            assert made.heard("refused") == 0
            assert (made.heard("peak_running"), made.heard("peak_waiting")) == (1, 3)
            assert made.metric("drains_total", evidence="reported") == made.metric("drains_total") == 2

    drive(run())


@pytest.mark.parametrize("where", ["the line", "the backend's queue"])
def test_C11_who_leaves_a_line_takes_no_others_answer_along(where):
    """One slot: while the first is served the second, who waits for it, leaves. The first gets every byte."""
    slots = 1 if where == "the line" else 2
    body = chat("tokens=40 interval=5ms split")

    async def run() -> None:
        async with world(slots=slots, engine_slots=1, engine_queue=1) as made:
            direct = await ask(made.sim.port, body)
            for _ in range(3):
                call = await Call.open(made.port, post(body))
                answer = await call.content()
                second = await made.open("tokens=40 interval=5ms", stream=False)
                side = (lambda: made.totals.waiting) if slots == 1 else (lambda: made.heard("waiting"))
                await made.until(lambda: side() == 1)  # noqa: B023
                second.reset()
                await made.until(lambda: side() == 0)  # noqa: B023
                assert made.totals.running == made.heard("running") == 1
                answer = await call.body(answer)
                call.leave()
                assert not answer.cut
                assert answer.body == direct.body
                await made.settled()
            assert made.heard("completed") == 4
            assert made.totals.completed == made.totals.cancelled == 3
            assert made.heard("aborted_waiting") == (0 if slots == 1 else 3)

    drive(run())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_C13_a_backend_that_stalls_or_goes_on_hears_of_the_departure_at_once(stream):
    """It keeps its own side open, silent or writing: our side closes at once, and what it still sends is dropped."""

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + b"\r\n" + piece(delta("a")) if stream else b"HTTP/1.1 200 OK\r\n")
        await writer.drain()

    async def run() -> None:
        async with (
            raw_backend(answer) as backend,
            mesh_before(backend.url, slots=1, timeouts={"cleanup": "500ms"}) as made,
        ):
            for number in range(3):
                call = await made.open(stream=stream)
                if stream:
                    await call.content()
                await made.until(lambda: len(backend.asked) == number + 1)  # noqa: B023
                since = now()
                (call.leave, call.reset, call.half_close)[number]()
                await asyncio.wait_for(backend.asked[number].gone.wait(), 20)
                assert backend.asked[number].gone_at - since < TOLD_S
                await made.settled()
                call.leave()
            assert made.totals.cancelled == made.totals.accepted == 3
            assert made.metric("drains_total", evidence="grace") == made.metric("drains_total") == 3
            assert made.metric("cleanups_overdue_total") == 0

    drive(run())


def test_C13_what_a_backend_still_writes_after_the_departure_holds_nobody():
    """A backend that never looks at its reading side: it is cut after `timeouts.cleanup`, its slot stays counted."""
    written = 0

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(STREAM_HEAD + b"\r\n")
        while not writer.is_closing():
            writer.write(piece(delta("a" * 1000)))
            await writer.drain()
            written += 1
            await asyncio.sleep(0.001)

    async def run() -> None:
        timeouts = {"cleanup": "200ms", "total": "900ms"}
        async with (
            raw_backend(answer) as backend,
            mesh_before(backend.url, slots=1, timeouts=timeouts) as made,
        ):
            call = await made.open()
            await call.content()
            call.leave()
            await made.until(lambda: made.slots().draining == 1)
            (pool,) = (upstream.pool for upstream in made.gateway.upstreams.values())
            await made.until(lambda: made.metric("cleanups_overdue_total") == 1)
            await made.until(lambda: pool.in_use == 0)
            assert made.slots().draining == 1, "that it was cut says nothing of the work"
            await made.settled()
            assert made.metric("drains_total", evidence="limit") == made.metric("drains_total") == 1
            assert made.metric("buffered_bytes") == 0

    drive(run())
    assert written > 10


CANCELS = [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]


@pytest.mark.parametrize("count", CANCELS)
def test_C14_cancels_at_random_times_leave_no_orphan(count):
    """Every cancelled request ends at both sides: the books agree, and the backend works for nobody."""
    rng = random.Random(14)
    scripts = [
        "hang=headers",
        "hang=first",
        "hang=after:3",
        "tokens=400 interval=2ms",
        "tokens=400 first=3ms interval=1ms",
        "tokens=20 bytes=20KB interval=1ms",
    ]

    async def one(made: World, number: int) -> None:
        if number % 4 == 0:  # while it is surely at work, however busy the machine is
            call = await made.open("hang=after:3")
            await tokens(call, rng.randint(1, 3))
        else:
            call = await made.open(rng.choice(scripts), stream=rng.random() < 0.7)
            await asyncio.sleep(rng.choice((0, 0.01, 0.05, 0.1)) * rng.random())
        way = rng.choice(WAYS)
        getattr(call, way)()
        if way == "half_close":
            assert await call.closed()
            call.leave()

    async def run() -> None:
        async with world(slots=16, model={"queue": {"max_waiting": 64}}) as made:
            left = count

            async def caller() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    await one(made, left)

            async with made.watched(lambda: never_more_than_the_books_hold(made)):
                await asyncio.gather(*(caller() for _ in range(32)))
                await made.settled()
            totals = made.totals
            sent = sum(upstream.attempts for upstream in made.gateway.upstreams.values())
            assert totals.grants == totals.settled
            assert totals.accepted == totals.cancelled + totals.completed
            assert made.metric("cancellations_total") == totals.cancelled >= count / 4
            ended = made.heard("aborted") + made.heard("completed")
            assert made.heard("received") == ended <= sent
            assert made.heard("aborted") >= count / 4
            assert made.heard("peak_running") <= 16
            assert made.metric("drains_total", evidence="limit") == 0
            assert made.metric("cleanups_overdue_total") == 0

    drive(run())
