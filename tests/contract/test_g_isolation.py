"""Contract G4: one tenant's odd request does not stop the others."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time

from tests.contract.support import Call, ask, chat, drive, gateway, idle, mesh, post, until

TENANTS = [
    {"name": name, "keys": [{"sha256": hashlib.sha256(f"key-{name}".encode()).hexdigest()}]}
    for name in ("odd", "many")
]


def key(name: str) -> str:
    return f"authorization: Bearer key-{name}"


async def closed_loop(port: int, stop: asyncio.Event, done: list[float]) -> None:
    """One caller of the tenant `many` that comes back at once; the instants of its completions."""
    while not stop.is_set():
        answer = await ask(port, chat("tokens=2 interval=20ms"), key("many"))
        if answer.status == 200:
            done.append(time.monotonic())
        else:
            await asyncio.sleep(0.02)


def longest_gap(done: list[float], since: float, until_at: float) -> float:
    instants = [since, *(at for at in done if since < at < until_at), until_at]
    return max(b - a for a, b in itertools.pairwise(instants))


async def beside(running, odd) -> tuple[float, int]:
    """Run `odd` for a while beside six callers; the longest time without a completion, and the completions."""
    stop = asyncio.Event()
    done: list[float] = []
    callers = [asyncio.create_task(closed_loop(running.port, stop, done)) for _ in range(6)]
    await until(lambda: running.state()["totals"]["completed"] >= 30)
    began = time.monotonic()
    await odd()
    ended = time.monotonic()
    stop.set()
    await asyncio.gather(*callers)
    return longest_gap(done, began, ended), len([at for at in done if began < at < ended])


async def recovers(running) -> bool:
    """Whether requests that use all slots prove all of them again, one at a time, when the back-off (5 s) is over."""
    until_at = time.monotonic() + 15
    while time.monotonic() < until_at:
        await asyncio.gather(
            *(ask(running.port, chat("tokens=2 interval=20ms"), key("many")) for _ in range(8))
        )
        if running.state()["backends"][0]["slots"]["believed"] == 8:
            return True
    return False


def test_G4_a_request_that_is_always_full_does_not_stop_the_model(sim):
    """It alone is sent back: the believed capacity recovers by the others, whose probes come first."""
    document = mesh(sim.url, slots=8, tenants=TENANTS, model={"queue": {"max_waiting": 16, "timeout": "4s"}})

    async def odd(port: int) -> None:
        answer = await ask(port, chat("full"), key("odd"))
        assert answer.headers["x-mesh-code"] == "queue_timeout"

    with gateway(document) as running:
        gap, served = drive(beside(running, lambda: odd(running.port)))
        drive(until(lambda: idle(running.state()), show=running.state))
        assert drive(recovers(running)), running.state()
    assert gap < 1.5, gap  # the first back-off is 0.25 s; not the whole of the four
    assert served > 60


def test_G4_a_wide_request_does_not_keep_slots_from_the_others_for_long(sim):
    """Its tenant pays for the slots that it keeps idle, and it makes way before its time in the line is over."""
    document = mesh(sim.url, slots=8, tenants=TENANTS, model={"queue": {"max_waiting": 16, "timeout": "6s"}})

    async def odd(port: int) -> None:
        long = await Call.open(port, post(chat("hang=after:1"), key("odd")))
        await long.content()
        answer = await ask(port, chat(n=8), key("odd"))
        assert answer.headers["x-mesh-code"] == "queue_timeout"
        long.leave()

    with gateway(document) as running:
        gap, served = drive(beside(running, lambda: odd(running.port)))
        drive(until(lambda: idle(running.state()), show=running.state))
    assert gap < 4.0, gap  # windows of 1 s and 2 s at this service time, not the whole six
    assert served > 60
