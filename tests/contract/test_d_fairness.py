"""Contract D: one tenant saturates, another's small requests go on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import datetime

import pytest

from tests.contract.crowds import all_slots_held, brief, key, lasting, metered, send, tenant, watched
from tests.contract.support import Call, adds_up, ask, chat, drive, gateway, idle, mesh, post, until

TENANTS = [tenant(name) for name in ("flood", "flood2", "light")]


async def flood(port: int, tenant: str, callers: int, script: str, stop: asyncio.Event) -> int:
    """`callers` callers that come back at once, whatever they are answered."""
    served = 0

    async def caller() -> None:
        nonlocal served
        while not stop.is_set():
            answer = await ask(port, chat(script), key(tenant))
            served += answer.status == 200
            if answer.status != 200:
                await asyncio.sleep(0.02)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return served


def test_D5_a_light_tenant_beside_a_flood(sim):
    """At p95 its wait is at most 1.5 slot releases, whatever stands in the line before it.

    Releases are counted, not timed: how many other grants there were between its arrival and its own.
    """
    slots = 4

    async def run(running):
        stop = asyncio.Event()
        # Answers of different lengths: slots come free one by one.
        noise = [
            asyncio.create_task(flood(running.port, "flood", 6, f"tokens={n} interval=50ms", stop))
            for n in (3, 5, 7, 11)
        ]
        await until(lambda: running.state()["totals"]["waiting"] >= 12)
        ids = []
        for number in range(20):
            answer = await ask(running.port, chat("tokens=1"), key("light"), f"x-request-id: light-{number}")
            assert answer.status == 200, answer
            ids.append(answer.headers["x-request-id"])
        stop.set()
        await asyncio.gather(*noise)
        return ids

    document = mesh(sim.url, slots=slots, tenants=TENANTS, model={"queue": {"max_waiting": 16}})
    with gateway(document) as running:
        ids = drive(run(running))
        drive(until(lambda: idle(running.state())))
        assert adds_up(running.state())
    lines = {line["id"]: line for line in running.requests_logged()}
    spans = [(stamp(line) - line["duration_ms"] / 1000, line) for line in lines.values()]  # arrival, line
    others = sorted(arrived + line["wait_ms"] / 1000 for arrived, line in spans if line["tenant"] == "flood")
    overtaken = []
    for number in ids:
        arrived = stamp(lines[number]) - lines[number]["duration_ms"] / 1000
        granted = arrived + lines[number]["wait_ms"] / 1000
        overtaken.append(sum(arrived + CLOCK_S < at < granted - CLOCK_S for at in others))
    overtaken.sort()
    assert overtaken[int(len(overtaken) * 0.95) - 1] <= 1, (
        overtaken
    )  # its own release is the second at the latest


CLOCK_S = 0.003  # the log's times are in milliseconds


def stamp(line) -> float:
    return datetime.fromisoformat(line["at"]).timestamp()


def test_D8_two_floods_cannot_keep_a_third_out_of_the_line(sim):
    async def run(running):
        stop = asyncio.Event()
        script = "tokens=4 interval=100ms"
        noise = [
            asyncio.create_task(flood(running.port, name, 16, script, stop)) for name in ("flood", "flood2")
        ]
        await until(lambda: running.state()["totals"]["waiting"] >= 6)
        answers = [await ask(running.port, chat("tokens=1"), key("light")) for _ in range(15)]
        stop.set()
        await asyncio.gather(*noise)
        return answers

    document = mesh(sim.url, slots=2, tenants=TENANTS, model={"queue": {"max_waiting": 6}})
    with gateway(document) as running:
        answers = drive(run(running))
        assert [answer.status for answer in answers] == [200] * 15, [
            a.headers.get("x-mesh-code") for a in answers
        ]
        assert running.metric("requests_total", cause="displaced") >= 1
        assert running.metric("requests_total", tenant="light", cause="displaced") == 0


def test_D1_a_tenant_at_its_own_limit_stands_in_nobodys_way(sim):
    tenants = [{**TENANTS[0], "max_running": 1}, *TENANTS[1:]]

    async def run(running):
        holder = await Call.open(running.port, post(chat("hang=after:1"), key("flood")))
        await holder.content()
        parked = [await Call.open(running.port, post(chat("tokens=1"), key("flood"))) for _ in range(3)]
        await until(lambda: running.state()["totals"]["waiting"] == 3)
        began = time.monotonic()
        assert (await ask(running.port, chat("tokens=1"), key("light"))).status == 200
        assert time.monotonic() - began < 5
        assert running.state()["totals"]["waiting"] == 3
        holder.leave()
        for call in parked:
            assert (await call.answer()).status == 200
            call.leave()
        await until(lambda: idle(running.state()))

    with gateway(mesh(sim.url, slots=2, tenants=tenants, model={"queue": {"max_waiting": 16}})) as running:
        drive(run(running))


def test_D6_classes_order_within_a_tenant(sim):
    """`high` overtakes `low` of the same tenant; nobody may ask for more than the tenant is allowed."""
    tenants = [{**TENANTS[0], "class": "normal"}]

    async def run(running):
        holder = await Call.open(running.port, post(chat("hang=after:1"), key("flood")))
        await holder.content()
        low = await Call.open(running.port, post(chat("tokens=1"), key("flood"), "x-mesh-class: low"))
        await until(lambda: running.state()["totals"]["waiting"] == 1)
        normal = await Call.open(running.port, post(chat("hang=after:1"), key("flood")))
        await until(lambda: running.state()["totals"]["waiting"] == 2)
        holder.leave()
        await normal.content()
        assert running.state()["totals"]["waiting"] == 1
        normal.leave()
        assert (await low.answer()).status == 200
        low.leave()
        up = await ask(running.port, chat(), key("flood"), "x-mesh-class: high")
        unknown = await ask(running.port, chat(), key("flood"), "x-mesh-class: nonsense")
        assert unknown.status == 400
        return up

    with gateway(mesh(sim.url, slots=1, tenants=tenants, model={"queue": {"max_waiting": 16}})) as running:
        up = drive(run(running))
        assert up.status in (200, 400)


# --- shares and policies, over sockets and in this loop ---------------------------------------------------------------


def test_D3_slot_seconds_follow_the_weights(monkeypatch):
    """Two backlogged tenants, one with requests three times as long: within 10 % over some hundred requests."""
    brief(monkeypatch)

    async def run():
        tenants = [tenant("a"), tenant("b", weight=2), tenant("holder")]
        async with watched(monkeypatch, slots=8, tenants=tenants) as watch:
            async with all_slots_held(watch, "holder", 8):
                await send(watch, "a", 60, lasting(60, 180))
                await send(watch, "b", 230, lasting(20, 60))
                await watch.all_wait("a", 60)
                await watch.all_wait("b", 230)
            await watch.more_ended(40)
            begin = asyncio.get_running_loop().time()
            await watch.more_ended(200)
            assert watch.waiting("a") > 0
            assert watch.waiting("b") > 0
            return watch.slot_seconds(begin, asyncio.get_running_loop().time())

    held = drive(run())
    assert held["b"] / held["a"] == pytest.approx(2.0, rel=0.1), held


def test_D3_F3_tokens_follow_the_weights_however_long_the_answers_are(monkeypatch):
    """A asks for 30 tokens, B for 5 at half the speed: their tokens, not their requests, are as their weights."""
    brief(monkeypatch)

    async def run():
        fairness = {"unit": "tokens", "input_token_weight": 1, "output_token_weight": 2}
        tenants = [tenant("a"), tenant("b", weight=2), tenant("holder")]
        async with watched(monkeypatch, slots=8, tenants=tenants, fairness=fairness) as watch:
            async with all_slots_held(watch, "holder", 8):
                await send(watch, "a", 80, lambda rng: f"tokens={rng.randint(20, 40)} interval=4ms")
                await send(watch, "b", 300, lambda rng: f"tokens={rng.randint(3, 7)} interval=8ms")
                await watch.all_wait("a", 80)
                await watch.all_wait("b", 300)
            await watch.more_ended(280)
            assert watch.waiting("a") > 0
            assert watch.waiting("b") > 0
            return watch.tokens(2.0), Counter(event.tenant for event, _ in watch.ended)

    served, requests = drive(run())
    assert served["b"] / served["a"] == pytest.approx(2.0, rel=0.1), served
    assert requests["b"] > 3 * requests["a"], requests


@pytest.mark.parametrize(
    ("policy", "unit"), [("sfq", "slot_seconds"), ("sfq", "tokens"), ("fifo", "requests")]
)
def test_D5_the_policy_decides_how_a_light_tenant_fares(policy, unit, monkeypatch):
    """Beside a flood: under `sfq` the next free slot is its own, under `fifo` it waits for the whole line."""
    brief(monkeypatch)

    async def run():
        async with watched(
            monkeypatch,
            slots=4,
            tenants=[tenant("flood"), tenant("light")],
            fairness={"policy": policy, "unit": unit},
        ) as watch:
            await send(watch, "flood", 60, lasting(10, 40))
            await watch.more_ended(40)
            for _ in range(20 if policy == "sfq" else 6):
                while watch.waiting("flood") < 16:
                    await send(watch, "flood", 4, lasting(10, 40))
                assert (await ask(watch.port, metered("tokens=1"), key("light"))).status == 200
            return sorted(watch.releases_waited["light"])

    waits = drive(run())
    if policy == "sfq":
        assert waits[int(0.95 * len(waits)) - 1] <= 1, waits
    else:
        assert waits[0] >= 8, waits


def test_D6_reserved_slots_are_given_back_at_the_next_release(monkeypatch):
    """They are not kept idle; when their owner comes it is next, up to them, whatever the weights."""

    async def run():
        tenants = [tenant("flood"), tenant("heavy", weight=1000), tenant("owner", weight=0.001, reserved=2)]
        async with watched(monkeypatch, slots=3, tenants=tenants) as watch:

            async def hold(name: str) -> Call:
                return await Call.open(watch.port, post(chat("hang=after:1"), key(name)))

            floods = [await hold("flood") for _ in range(3)]
            for call in floods:
                await call.content()
            for name in ("heavy", "heavy", "owner", "owner", "owner"):
                await hold(name)
            await until(lambda: watch.waiting("heavy") == 2 and watch.waiting("owner") == 3)
            for number, call in enumerate(floods, 1):
                call.leave()
                await watch.granted(number)
            return list(watch.grants)

    assert drive(run()) == ["owner", "owner", "heavy"]


def test_D6_a_class_has_a_limit_a_line_and_times_of_its_own(monkeypatch):
    """`low` holds one slot at most and one place, waits 0.6 s at most, and is given 0.3 s for its first content."""
    low = {
        "name": "low",
        "max_running": 1,
        "queue": {"max_waiting": 1, "timeout": "600ms"},
        "timeouts": {"first_content": "300ms"},
    }

    async def run():
        classes = [{"name": "normal"}, low]
        async with watched(monkeypatch, slots=4, tenants=[tenant("a")], classes=classes) as watch:

            async def of_class(name: str, script: str) -> Call:
                return await Call.open(watch.port, post(chat(script), key("a"), f"x-mesh-class: {name}"))

            first = await of_class("low", "hang=after:1")
            await first.content()
            waiting = await of_class("low", "tokens=1")
            await until(lambda: watch.waiting("a") == 1)  # three slots are free
            third = await (await of_class("low", "tokens=1")).answer()
            assert (third.status, third.error["code"]) == (503, "queue_full")
            assert (await (await of_class("normal", "tokens=1")).answer()).status == 200
            assert (await waiting.answer()).error["code"] == "queue_timeout"
            first.leave()
            await until(lambda: watch.running("a") == 0)
            late = [await of_class(name, "hang=first") for name in ("low", "normal")]
            assert (await late[0].answer()).error["code"] == "first_content_timeout"
            assert watch.running("a") == 1  # the other has the general 120 s
            late[1].leave()

    drive(run())


def test_D6_F1_strict_classes_leave_the_others_their_floor(monkeypatch):
    """High asks for more than all slots, for ever: it goes first, and low still gets a fourth of the grants."""
    brief(monkeypatch)

    async def run():
        fairness = {"strict": True, "floor": 0.25}
        classes = [{"name": "high"}, {"name": "low"}]
        tenants = [tenant(name, **{"class": name}) for name in ("high", "low")]
        async with watched(
            monkeypatch,
            slots=5,
            tenants=[*tenants, tenant("holder", **{"class": "low"})],
            classes=classes,
            fairness=fairness,
        ) as watch:
            async with all_slots_held(watch, "holder", 5):
                await send(watch, "low", 50, lasting(20, 40))
                await send(watch, "high", 110, lasting(20, 40))
                await watch.all_wait("low", 50)
                await watch.all_wait("high", 110)
            await watch.granted(100)
            return watch.grants[:100]

    grants = drive(run())
    assert [len(highs) for highs in "".join(name[0] for name in grants).split("l")] == [3] * 25 + [0]
