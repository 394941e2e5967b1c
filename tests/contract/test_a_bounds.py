"""Contract A: how much work is accepted. Over real sockets, the simulator in its own process."""

from __future__ import annotations

import asyncio
import statistics
import time

from tests.contract.support import Call, adds_up, ask, chat, gateway, idle, mesh, post, until


def test_A1_A2_the_thousand_arrivals(sim):
    """8 slots, 16 places, 1,000 arrivals of one caller over half a second: 8 run, 16 wait, 976 are refused."""

    async def arrive(port: int, at: float):
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        call = await Call.open(port, post(chat("tokens=4 first=1 interval=1500ms")))
        answer = await call.head()
        took = time.monotonic() - call.sent_at
        answer = await call.body(answer)
        call.leave()
        return answer, took

    async def run(running):
        began = time.monotonic() + 0.2
        calls = [asyncio.create_task(arrive(running.port, began + n * 0.0005)) for n in range(1000)]
        await until(lambda: running.state()["totals"]["refused"] >= 976)
        state = running.state()
        assert state["totals"]["refused"] == 976
        assert state["backends"][0]["slots"] == {"capacity": 8, "free": 0, "running": 8, "draining": 0}
        assert state["models"][0]["waiting"]["total"] == 16
        assert state["totals"]["accepted"] == 24
        assert adds_up(state)
        return await asyncio.gather(*calls)

    with gateway(mesh(sim.url, slots=8, model={"queue": {"max_waiting": 16, "timeout": "60s"}})) as running:
        answers = asyncio.run(run(running))
        served = [answer for answer, _ in answers if answer.status == 200]
        refused = [(answer, took) for answer, took in answers if answer.status == 503]
        assert (len(served), len(refused)) == (24, 976)
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in served)
        for answer, _ in refused:
            assert answer.headers["x-mesh-code"] == "queue_full"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert int(answer.headers["retry-after-ms"]) > 0
        delays = sorted(took for _, took in refused)
        assert statistics.quantiles(delays, n=100)[98] < 0.1, delays[-20:]
        assert len({answer.headers["retry-after-ms"] for answer, _ in refused}) > 50, "they return together"
        state = running.state()
        assert idle(state)
        assert adds_up(state)
    assert sim.state()["peak_running"] == 8
    assert sim.state()["started"] == 24


def test_A3_no_line_at_all(sim):
    async def run(running):
        first = await Call.open(running.port, post(chat("hang=first")))
        await until(lambda: sim.state()["running"] == 1)
        answer = await ask(running.port, chat())
        assert (answer.status, answer.headers["x-mesh-code"]) == (503, "queue_full")
        assert running.state()["totals"]["waiting"] == 0
        first.leave()
        await until(lambda: idle(running.state()))

    with gateway(mesh(sim.url, slots=1, model={"queue": {"max_waiting": 0}})) as running:
        asyncio.run(run(running))


def test_A5_A6_cancelled_waiters_leave_nothing(sim):
    """Depth and the partial permits of a wide waiter return; the backend never hears of those that left."""

    async def run(running):
        holders = [await Call.open(running.port, post(chat("hang=after:1"))) for _ in range(4)]
        for holder in holders:
            await holder.content()
        waiters = [await Call.open(running.port, post(chat())) for _ in range(3)]
        wide = await Call.open(running.port, post(chat(n=4)))
        await until(lambda: running.state()["totals"]["waiting"] == 4)
        for waiter in waiters:
            waiter.leave()
        assert await until(lambda: running.state()["totals"]["waiting"] == 1) < 1.0
        # Slots that come free are collected for the wide one and go to nobody else ...
        holders.pop().leave()
        await until(lambda: running.state()["backends"][0]["slots"]["free"] == 1)
        narrow = await Call.open(running.port, post(chat()))
        await until(lambda: running.state()["totals"]["waiting"] == 2)
        assert sim.state()["running"] == 3
        # ... until it leaves: then they are given on at once.
        wide.leave()
        assert (await narrow.answer()).status == 200
        narrow.leave()
        for holder in holders:
            holder.leave()
        await until(lambda: idle(running.state()), show=running.state)
        state = running.state()
        assert state["totals"]["cancelled"] == 8
        assert adds_up(state)

    with gateway(mesh(sim.url, slots=4, model={"queue": {"max_waiting": 16}})) as running:
        asyncio.run(run(running))
        assert running.metric("cancellations_total", stage="waiting") == 4
    assert sim.state()["started"] == 5


def test_A7_one_deadline(sim):
    """The caller shortens it; the wait counts; what is left goes to the backend."""

    async def run(running):
        began = time.monotonic()
        answer = await ask(running.port, chat("hang=headers"), "x-mesh-timeout: 0.5")
        assert (answer.status, answer.headers["x-mesh-code"]) == (504, "deadline_exceeded")
        assert 0.4 < time.monotonic() - began < 5
        holder = await Call.open(running.port, post(chat("hang=after:1")))
        await holder.content()
        answer = await ask(running.port, chat(), "x-mesh-timeout: 0.5")
        assert answer.headers["x-mesh-code"] == "deadline_exceeded"
        assert answer.status == 504
        for nonsense in (
            "x-mesh-timeout: soon",
            "x-mesh-timeout: -1",
            "x-mesh-timeout: 0",
            "x-mesh-timeout: nan",
        ):
            answer = await ask(running.port, chat(), nonsense)
            assert (answer.status, answer.headers["x-mesh-code"]) == (400, "invalid_request")
        holder.leave()

    with gateway(mesh(sim.url, slots=1)) as running:
        asyncio.run(run(running))


def test_A12_half_sent_bodies_hold_nothing(sim):
    async def run(running):
        body = chat()
        halves = [await Call.open(running.port, post(body)[:-10]) for _ in range(20)]
        answers = await asyncio.gather(*(ask(running.port, chat("tokens=3")) for _ in range(8)))
        assert [answer.status for answer in answers] == [200] * 8
        state = running.state()
        assert state["totals"]["waiting"] == 0
        assert state["totals"]["accepted"] == 8
        for half in halves:
            half.leave()

    with gateway(mesh(sim.url, slots=2)) as running:
        asyncio.run(run(running))


def test_A13_wider_than_any_backend(sim):
    with gateway(mesh(sim.url, slots=4)) as running:
        answer = asyncio.run(ask(running.port, chat(n=5)))
        assert (answer.status, answer.headers["x-mesh-code"]) == (400, "invalid_request")
        answer = asyncio.run(ask(running.port, chat("tokens=2", n=4)))
        assert answer.status == 200
        assert answer.body.count(b'"finish_reason":"stop"') == 4
    assert sim.state()["peak_running"] == 4


def test_A9_retries_are_bounded(sim):
    """A backend that always fails is asked `attempts` times, and the budget bounds the sum."""

    async def run(running):
        answers = [await ask(running.port, chat("status=503")) for _ in range(30)]
        assert {answer.status for answer in answers} == {502}
        assert {answer.headers["x-mesh-code"] for answer in answers} == {"upstream_error"}

    with gateway(mesh(sim.url, slots=4, retries={"attempts": 3, "budget": 0.1})) as running:
        asyncio.run(run(running))
        tries = len(sim.state()["requests"])
        assert 30 <= tries <= 30 * 1.1 + 4, tries
        assert running.metric("retries_total", reason="503") == tries - 30
