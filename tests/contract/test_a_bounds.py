"""Contract A: how much work is accepted. Over real sockets, the simulator in its own process."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time

from tests.contract.support import Call, adds_up, ask, chat, drive, gateway, idle, mesh, post, until


class Arrival(asyncio.Protocol):
    """One caller with as little of its own cost as can be: a thousand of them must not be what is measured."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.answer = b""
        self.sent_at = self.took_s = 0.0

    def connection_made(self, transport):
        self.transport = transport
        self.sent_at = time.monotonic()
        transport.write(self.request)

    def data_received(self, data):
        if not self.answer:
            self.took_s = time.monotonic() - self.sent_at
        self.answer += data

    def header(self, name: str) -> str:
        found = re.search(rf"\r\n{name}: ([^\r]*)\r\n", self.answer.decode("latin-1"))
        assert found is not None, self.answer
        return found[1]


async def thousand(running, sim):
    """1,000 arrivals over half a second against 8 slots and 16 places; the counts, and the callers refused."""
    loop = asyncio.get_running_loop()
    began = loop.time() + 0.1
    request = post(chat("tokens=2 interval=60s"))

    async def arrive(at: float) -> Arrival:
        await asyncio.sleep(at - loop.time())
        _, arrival = await loop.create_connection(lambda: Arrival(request), "127.0.0.1", running.port)
        return arrival

    arrivals = await asyncio.gather(*(arrive(began + n * 0.0005) for n in range(1000)))
    await until(lambda: running.state()["totals"]["refused"] >= 976, show=running.state)
    await until(lambda: sum(bool(arrival.answer) for arrival in arrivals) >= 976 + 8)
    state = running.state()
    slots = state["backends"][0]["slots"]
    assert (slots["capacity"], slots["free"], slots["running"], slots["draining"]) == (8, 0, 8, 0)
    assert state["models"][0]["waiting"]["total"] == 16
    assert (state["totals"]["accepted"], state["totals"]["refused"]) == (24, 976)
    assert adds_up(state)
    counted = sim.state()
    assert (counted["running"], counted["peak_running"], counted["started"]) == (8, 8, 8)
    served = [arrival for arrival in arrivals if arrival.answer.startswith(b"HTTP/1.1 200 ")]
    waiting = [arrival for arrival in arrivals if not arrival.answer]
    refused = [arrival for arrival in arrivals if arrival.answer and arrival not in served]
    assert (len(served), len(waiting), len(refused)) == (8, 16, 976)
    for arrival in (*refused, *waiting):  # first, so that no slot comes free for them
        arrival.transport.abort()
    await until(lambda: running.state()["totals"]["waiting"] == 0, show=running.state)
    for arrival in served:
        arrival.transport.abort()
    await until(lambda: idle(running.state()), show=running.state)
    assert sim.state()["started"] == 8, "none of those who waited was ever heard of"
    return refused


def test_A1_A2_the_thousand_arrivals(sim):
    """8 slots, 16 places, 1,000 arrivals of one caller over half a second: 8 run, 16 wait, 976 are refused.

    Each refusal is useful, and quick: p99 within 100 ms. The counts are exact in every round; the time may be
    disturbed by whatever else the machine does, so the best of three rounds counts.
    """
    p99 = []
    for _ in range(3):
        sim.reset()
        with gateway(
            mesh(sim.url, slots=8, model={"queue": {"max_waiting": 16, "timeout": "60s"}})
        ) as running:
            refused = drive(thousand(running, sim))
            assert adds_up(running.state())
            assert running.state()["totals"]["cancelled"] == 24
        for arrival in refused:
            assert arrival.answer.startswith(b"HTTP/1.1 503 ")
            assert arrival.header("x-mesh-code") == "queue_full"
            assert 1 <= int(arrival.header("retry-after")) <= 60
            assert int(arrival.header("retry-after-ms")) > 0
            error = json.loads(arrival.answer.partition(b"\r\n\r\n")[2])["error"]
            assert error["place"] == 17
            assert error["estimated_wait_seconds"] > 0
        assert len({arrival.header("retry-after-ms") for arrival in refused}) > 50, "they return together"
        p99.append(statistics.quantiles((arrival.took_s for arrival in refused), n=100)[98])
        if p99[-1] <= 0.1:
            break
    assert min(p99) <= 0.1, p99


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
        drive(run(running))


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
        drive(run(running))
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
        drive(run(running))


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

    with gateway(mesh(sim.url, slots=2, model={"queue": {"max_waiting": 16}})) as running:
        drive(run(running))


def test_A13_wider_than_any_backend(sim):
    with gateway(mesh(sim.url, slots=4)) as running:
        answer = drive(ask(running.port, chat(n=5)))
        assert (answer.status, answer.headers["x-mesh-code"]) == (400, "invalid_request")
        error = json.loads(answer.body)["error"]
        assert error["param"] == "n"
        assert "4 at most" in error["message"]
        assert "retry-after" not in answer.headers, "coming back changes nothing"
        answer = drive(ask(running.port, chat("tokens=2", n=4)))
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
        drive(run(running))
        tries = len(sim.state()["requests"])
        assert 30 <= tries <= 30 * 1.1 + 4, tries
        assert running.metric("retries_total", reason="503") == tries - 30
