"""Slots and permits leaked: the scenarios L of docs/field-faults.md, by the counts of both sides."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from hashlib import sha256
from typing import Any

import pytest

from tests.contract.support import Answer, Call, ask, chat, drive, post
from tests.faults.support import World, tokens, world


def test_L1_fifty_rounds_of_abandoned_and_completed_calls_leave_room_for_the_next():
    """4 slots; 50 rounds of 4 calls, half of them left after two tokens: nobody of round 51 has to wait."""

    async def run() -> None:
        async with world(slots=4) as made:
            for number in range(50):
                left = [await made.open("hang=after:2") for _ in range(2)]
                stayed = [await made.open("tokens=3", stream=stream) for stream in (True, False)]
                for call in left:
                    await tokens(call, 2)
                    call.reset() if number % 2 else call.leave()
                for call in stayed:
                    answer = await call.answer()
                    assert (answer.status, answer.cut) == (200, False)
                    call.leave()
                await made.settled()
            again = [await made.open("hang=after:1") for _ in range(4)]
            for call in again:
                await tokens(call)
            assert (made.slots().running, made.slots().free, made.heard("running")) == (4, 0, 4)
            assert made.metric("admission_wait_seconds_count") == 0, "somebody had to wait"
            for call in again:
                call.leave()
            await made.settled()
            totals = made.totals
            assert (totals.accepted, totals.completed, totals.cancelled) == (204, 100, 104)
            assert (made.heard("completed"), made.heard("aborted")) == (100, 104)
            assert made.heard("peak_running") == 4
            assert made.metric("cancellations_total", stage="after_content") == 104

    drive(run())


def test_L3_upstream_failures_give_everything_back():
    """A backend that times out, answers 502 and answers 504, each 20 times, before 2 slots."""
    kinds = {
        "hang=headers": (504, "first_content_timeout"),
        "status=502": (502, "upstream_error"),
        "status=504": (502, "upstream_error"),
    }

    async def run() -> None:
        timeouts = {"first_content": "100ms"}
        async with world(slots=2, timeouts=timeouts, retries={"attempts": 1}) as made:
            for script, expected in kinds.items():
                for _ in range(10):
                    answers = await asyncio.gather(*(ask(made.port, chat(script)) for _ in range(2)))
                    assert [(a.status, a.error["code"]) for a in answers] == [expected] * 2
                    await made.settled()
            assert made.metric("requests_total", cause="first_content_timeout") == 20
            assert made.metric("requests_total", cause="upstream_error") == 40
            assert (made.totals.accepted, made.totals.failed) == (60, 60)
            assert (made.heard("received"), made.heard("aborted"), made.heard("failed")) == (60, 20, 40)
            assert made.heard("peak_running") == 2
            assert made.metric("admission_wait_seconds_count") == 0, "somebody had to wait for a leaked slot"
            both = await asyncio.gather(*(ask(made.port, chat("tokens=2")) for _ in range(2)))
            assert [answer.status for answer in both] == [200, 200]

    drive(run())


def test_L3_plain_requests_that_time_out_give_everything_back():
    """A plain request has no limit for its first content; its deadline ends it."""

    async def run() -> None:
        async with world(slots=2) as made:
            for _ in range(3):
                late = (chat(script, stream=False) for script in ("hang=headers", "hang=after:1"))
                answers = await asyncio.gather(
                    *(ask(made.port, body, "x-mesh-timeout: 0.1") for body in late)
                )
                assert {answer.error["code"] for answer in answers} == {"deadline_exceeded"}
                await made.settled()
            assert made.metric("requests_total", cause="deadline_exceeded") == made.heard("aborted") == 6
            assert made.metric("admission_wait_seconds_count") == 0

    drive(run())


def test_L5_a_log_that_stands_still_keeps_no_slot():
    """The log's sink takes nothing at all: each of 20 requests finds the only slot free when it comes."""
    writable = threading.Event()

    async def run() -> None:
        async with world(slots=1, sink=lambda _: writable.wait(60)) as made:
            try:
                for number in range(20):
                    answer = await ask(made.port, chat("tokens=2", stream=bool(number % 2)))
                    assert answer.status == 200
                    await made.settled()
                assert made.log.written_total == 0, "the log was to stand still"
                assert made.totals.completed == made.heard("completed") == 20
                assert made.metric("admission_wait_seconds_count") == 0
            finally:
                writable.set()

    drive(run())


def test_L6_counts_never_fall_below_zero_and_backends_share_evenly():
    """Success, failure, retry and departure over three backends; the ledger is looked at all the time."""
    rng = random.Random(6)
    scripts = ["tokens=2"] * 4 + ["status=500", "status=503", "cut=after:1", "tokens=50 interval=5ms"]
    count, at_once = 200, 9

    async def one(made: World, script: str) -> None:
        call = await made.open(script, stream=rng.random() < 0.7)
        if "interval" in script:
            await asyncio.sleep(rng.random() * 0.05)
            call.reset()
            return
        await call.answer()
        call.leave()

    async def run() -> None:
        never_open = {"breaker": {"min_requests": 1_000_000}}
        retries = {"attempts": 2, "budget": 1}
        async with world(3, slots=3, backend=never_open, retries=retries) as made:

            def check() -> None:
                made.gateway.admission.check()
                for view in made.gateway.snapshot().backends:
                    assert 0 <= view.running <= 3, view
                    assert 0 <= view.draining <= 3, view
                    assert view.running + view.draining + view.free == 3, view
                assert made.heard("peak_running") <= 9

            todo = [rng.choice(scripts) for _ in range(count)]

            async def caller() -> None:
                while todo:
                    await one(made, todo.pop())

            async with made.watched(check):
                await asyncio.gather(*(caller() for _ in range(at_once)))
                await made.settled()
            sent = attempts(made)
            shares = [one / sum(sent) for one in sent]
            assert all(0.2 < share < 0.5 for share in shares), sent
            # One that was left at once may not have reached its backend; nothing else reaches it.
            assert 0 <= sum(sent) - made.heard("received") <= made.totals.cancelled
            assert made.metric("retries_total", reason="503") > 5
            assert made.totals.accepted == count
            ended = (made.totals.completed, made.totals.failed, made.totals.cancelled)
            assert all(ended), ended
            # At rest none looks busier than another: what comes one at a time goes to each in turn.
            for _ in range(30):
                assert (await ask(made.port, chat("tokens=1"))).status == 200
            assert [after - before for before, after in zip(sent, attempts(made), strict=True)] == [10] * 3

    drive(run())


def attempts(made: World) -> list[int]:
    """How many tries were made at each backend."""
    return [upstream.attempts for upstream in made.gateway.upstreams.values()]


def test_L8_a_hundred_waiters_leave_and_the_gauge_is_zero():
    async def run() -> None:
        async with world(slots=1, model={"queue": {"max_waiting": 100, "timeout": "60s"}}) as made:
            holder = await made.open("hang=after:1")
            await tokens(holder)
            waiters = [await made.open("tokens=1", stream=bool(number % 2)) for number in range(100)]
            await made.until(lambda: made.metric("waiting", model="demo") == 100)
            for number, waiter in enumerate(waiters):
                (waiter.leave, waiter.reset, waiter.half_close)[number % 3]()
            await made.until(lambda: made.metric("waiting", model="demo") == 0)
            (line,) = made.gateway.snapshot().lines
            assert (line.total, line.by_tenant, line.oldest_s) == (0, {}, 0.0)
            assert made.metric("oldest_waiter_seconds") == 0
            assert made.metric("cancellations_total", stage="waiting") == 100
            holder.leave()
            await made.settled()
            assert made.heard("received") == 1, "none of those who left was ever heard of"

    drive(run())


KEY = "a-key-of-the-test"


def test_L9_every_early_return_takes_nothing():
    """Refused for its key, size, kind, model or backend: no slot, no place, no connection, no byte is kept."""
    key = sha256(KEY.encode()).hexdigest()
    mine = f"authorization: Bearer {KEY}"
    good = chat("tokens=1")
    early: list[tuple[str, bytes, int, str]] = [
        ("bad key", post(good, "authorization: Bearer wrong"), 401, "invalid_api_key"),
        ("no key", post(good), 401, "invalid_api_key"),
        ("too large", post(b" " * 70_000, mine), 413, "body_too_large"),
        ("no json", post(b"hello", mine), 400, "invalid_json"),
        ("no model", post(chat(model="none"), mine), 404, "model_not_found"),
        ("too wide", post(chat(n=3), mine), 400, "invalid_request"),
        ("no time", post(good, mine, "x-mesh-timeout: soon"), 400, "invalid_request"),
        ("compressed", post(good, mine, "content-encoding: gzip"), 415, "unsupported_media_type"),
        ("no path", post(good, mine, path="/v1/nothing"), 404, "unknown_path"),
        ("no backend", post(good, mine), 503, "no_backend"),
    ]

    async def refused(made: World, request: bytes) -> Answer:
        call = await Call.open(made.port, request)
        answer = await call.answer()
        call.leave()
        return answer

    async def run() -> None:
        tenants = [{"name": "a", "keys": [{"sha256": key}]}]
        server: dict[str, Any] = {"limits": {"body_bytes": "64KiB"}}
        async with world(slots=2, server=server, tenants=tenants) as made:
            for what, request, status, code in early:
                for number in range(5):
                    made.gateway.gate.set_up("a", up=what != "no backend")
                    answer = await refused(made, request)
                    assert (answer.status, answer.headers["x-mesh-code"]) == (status, code), what
                    totals = made.totals
                    assert (totals.accepted, totals.grants, totals.waiting_bytes) == (0, 0, 0), what
                    assert (made.slots().running, made.slots().draining) == (0, 0), what
                    assert made.gateway.budget.used == 0, (what, number)
            made.gateway.gate.set_up("a", up=True)
            assert made.metric("rejections_total") == 5 * len(early)
            assert made.heard("received") == 0
            both = await asyncio.gather(*(ask(made.port, chat("tokens=2"), mine) for _ in range(2)))
            assert [answer.status for answer in both] == [200, 200]
            assert made.metric("admission_wait_seconds_count") == 0
            await made.until(lambda: made.gateway.http.connections == 0)
            await made.settled()

    drive(run())


CANCELS = [100, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(180)])]


@pytest.mark.parametrize("count", CANCELS)
def test_L12_cancels_leave_no_task_file_or_connection(count):
    """Left in the line, before and after the first token, streaming and plain: all is as it was before the first."""
    scripts = ["hang=headers", "hang=first", "hang=after:2", "tokens=3", "tokens=1000 interval=1ms"]
    rng = random.Random(12)

    async def one(made: World, number: int) -> None:
        call = await made.open(scripts[number % len(scripts)], stream=number % 3 > 0)
        await asyncio.sleep(rng.choice((0, 0.001, 0.02)) * rng.random())
        (call.reset if number % 2 else call.leave)()

    async def run() -> None:
        async with world(slots=8, model={"queue": {"max_waiting": 32}}) as made:
            assert (
                await ask(made.port, chat("tokens=1"))
            ).status == 200  # whatever comes with the first call
            (pool,) = (upstream.pool for upstream in made.gateway.upstreams.values())
            await made.until(lambda: made.gateway.http.connections == 0)
            await made.settled()

            def held() -> tuple[int, int]:
                # Connections kept for later are files at both ends, and are no leak: they are bounded and grow old.
                files = len(os.listdir("/proc/self/fd")) - 2 * pool.idle
                return len(asyncio.all_tasks()), files

            base = held()
            for first in range(0, count, 40):
                await asyncio.gather(*(one(made, first + number) for number in range(min(40, count - first))))
            await made.settled()
            await made.until(lambda: made.gateway.http.connections == 0)
            await made.until(lambda: made.heard("connections_open") == pool.idle)
            assert pool.in_use == pool.connecting == 0
            assert pool.idle <= 8
            await made.until(lambda: held() == base)
            assert made.totals.cancelled > count / 10
            assert made.heard("peak_running") <= 8
            assert made.totals.accepted + made.totals.refused <= count + 1

    drive(run())
