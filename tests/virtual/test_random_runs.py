"""Long random runs of the whole gateway under virtual time: every interleaving of a seed, its books in every turn.

A run is a gateway and its backends on a virtual network (`world`), some dozens of callers of every shape (`callers`),
and what goes wrong around them: backends that die and come back, a network that refuses, stalls and cuts reads short,
reloads of slots, a shutdown in the middle. In every turn the books must add up, every slot must have an owner, and no
backend may work on more than the books hold. Afterwards nothing may be left, and what each caller got must agree with
what the gateway says of it, byte for byte.

`PROVE=1` runs many more seeds, `SEED=n` one of them.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from inferencemesh.core.effects import Effect
from inferencemesh.sim.server import SimServer
from tests.virtual.callers import Caller, judge
from tests.virtual.loop import VirtualLoop, run
from tests.virtual.net import Weather
from tests.virtual.world import World, seeded, world

PROVE = os.environ.get("PROVE", "")
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(400 if PROVE else 20)
CALLERS = 60
SETTLED_WITHIN_S = 120.0


def drawn_document(rng: random.Random, slots: dict[str, int], urls: dict[str, str]) -> dict[str, Any]:
    """A configuration."""
    policy = rng.choice(("grace", "grace", "worst_case", "confirm"))
    backends = [
        {
            "name": name,
            "url": url,
            "engine": "sim",
            "slots": slots[name],
            "drain": {"policy": policy, "grace": rng.choice(("0s", "200ms")), "overdue": "1s"},
            "health": {"interval": "1s", "timeout": "1s", "unhealthy_after": rng.choice((1, 3))},
            "breaker": {"min_requests": 3, "window": "10s", "open_for": "2s", "half_open": 1},
        }
        for name, url in urls.items()
    ]
    for backend in backends:
        backend["breaker"] = backends[0]["breaker"]
    line = {"max_waiting": rng.choice((0, 2, 8, 16)), "timeout": rng.choice(("300ms", "5s", "5s"))}
    models: list[dict[str, Any]] = [
        {"name": "demo", "backends": list(urls), "routing": rng.choice(("least_busy", "round_robin"))},
        {"name": "solo", "backends": [next(iter(urls))], "queue": {"max_waiting": "auto"}},
    ]
    return {
        "server": {
            "shutdown_grace": rng.choice((0.0, 3.0)),
            "shutdown_waiters": rng.choice(("serve", "refuse")),
            "limits": {
                "buffered_bytes": "64KiB",
                "body_bytes": "16KiB",
                "keepalive": "5s",
                "header_timeout": "2s",
                "body_timeout": "3s",
            },
        },
        "backends": backends,
        "models": models,
        "admission": {
            "queue": line,
            "max_running": rng.choice((None, None, 3)),
        },
        "timeouts": {
            "connect": "500ms",
            "first_content": rng.choice(("1s", "5s")),
            "idle": rng.choice(("400ms", "3s")),
            "total": rng.choice(("3s", "12s")),
            "send": "2s",
            "cleanup": "1s",
        },
        "retries": {"attempts": rng.choice((1, 2, 3)), "budget": 1, "on": ["connect", 500, 502, 503]},
        "stream": {
            "prefetch": rng.choice(("first_content", "first_content", "first_event", "off")),
            "prefetch_max": rng.choice(("500ms", "15s")),
            "keepalive": rng.choice(("0s", "300ms")),
            "on_failure": rng.choice(("event", "event", "event_then_cut")),
        },
    }


def drawn_weather(rng: random.Random) -> Weather:
    """A network."""
    return Weather(
        latency_s=rng.choice((0.0, 0.001, 0.02)),
        room_bytes=rng.choice((300, 4096, 64 * 1024)),
        split=rng.choice((0.0, 0.1, 0.5)),
        refuse=rng.choice((0.0, 0.0, 0.1)),
        silent=rng.choice((0.0, 0.0, 0.03)),
        garble=rng.choice((0.0, 0.0, 0.1)),
        strict=rng.random() < 0.7,
    )


async def trouble(made: World, rng: random.Random) -> None:
    """What goes wrong around the callers, for as long as there are any."""
    gateway, names = made.gateway, list(made.sims)

    def operate(effects: list[Effect]) -> None:
        gateway.gate._apply(effects)
        gateway.gate._arm()

    while True:
        await asyncio.sleep(rng.uniform(0.1, 4.0))
        name = rng.choice(names)
        draw = rng.random()
        if draw < 0.3:
            listener = made.net.listeners.get(made.sims[name].port)
            if listener is not None:
                made.crash(name)
                await asyncio.sleep(rng.uniform(0.0, 1.5))
                made.recover(name, listener)
        elif draw < 0.5:
            slots = rng.choice((0, 1, 2, 3, 4, 5))
            made.history.note(f"resize {name} {slots}")
            operate(gateway.admission.resize(name, slots, made.loop.time()))
        elif draw < 0.6:
            made.history.note(f"cordon {name}")
            operate(gateway.admission.cordon(name, True, made.loop.time()))
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            operate(gateway.admission.cordon(name, False, made.loop.time()))
        elif draw < 0.7:
            # A frozen engine does not stop, and neither its peer's close nor any time says that it has.
            made.frozen.add(name)
            made.sims[name].engine.clock.pause()
            await asyncio.sleep(rng.uniform(0.0, 2.0))
            made.sims[name].engine.clock.resume()


def one_run(seed: int, *, callers: int = CALLERS, check_every: int = 1) -> World:
    """One history; returns the world that it ended in."""
    loop = VirtualLoop(seed)

    async def main() -> World:
        rng = seeded(seed, "world")
        slots = {"a": rng.randint(1, 4), "b": rng.randint(1, 4)}
        sims = {
            name: SimServer(
                max(1, count + rng.choice((-1, 0, 0, 3))),
                seed=number,
                queue=rng.choice((0, 0, 2)),
                models=("demo", "solo"),
                keepalive_s=rng.choice((1.0, 75.0)),
            )
            for number, (name, count) in enumerate(slots.items())
        }
        weather = drawn_weather(rng)
        document: dict[str, Any] = {}

        def configure(urls: dict[str, str]) -> dict[str, Any]:
            document.update(drawn_document(rng, slots, urls))
            return document

        async with world(loop, configure, sims, weather) as made:

            def each_turn() -> None:
                if loop.turns % check_every == 0:
                    made.check()

            loop.each_turn = each_turn
            drains = [backend["drain"] for backend in document["backends"]]
            lingers = all(d["policy"] == "confirm" or d["grace"] == "200ms" for d in drains)
            people = [
                Caller(made, seeded(seed, "caller", number), f"c{number}", ("demo", "demo", "solo"), lingers)
                for number in range(callers)
            ]

            async def arrive(person: Caller) -> None:
                await asyncio.sleep(person.rng.uniform(0, 10.0))
                await person.run()

            troubles = loop.create_task(trouble(made, seeded(seed, "trouble")))
            shutting = None
            if rng.random() < 0.3:
                await asyncio.sleep(0)
                shutting = loop.create_task(stop_in_the_middle(made, rng.uniform(1.0, 9.0)))
            try:
                await asyncio.gather(*map(arrive, people))
            finally:
                troubles.cancel()
                await asyncio.gather(troubles, return_exceptions=True)
            for sim in made.sims.values():
                sim.engine.clock.resume()
            if shutting is not None:
                await shutting
            await at_rest(made)
            made.check_rest()
            cut_on_failure = document["stream"]["on_failure"] == "event_then_cut"
            for person in people:
                for asked in person.asked:
                    cause = judge(made, asked, cut_on_failure=cut_on_failure)
                    made.fates[cause] += 1
                    made.history.note(f"{asked.id} {cause} {asked.response}")
        return made

    return run(loop, main())


async def stop_in_the_middle(made: World, after_s: float) -> None:
    await asyncio.sleep(after_s)
    made.history.note("shutdown")
    await made.gateway.shut_down()


async def at_rest(made: World) -> None:
    until = made.loop.time() + SETTLED_WITHIN_S
    while not made.at_rest():
        assert made.loop.time() < until, [(e.request, e.step, e.phase) for e in made.gateway.live]
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_run_keeps_its_books(seed: int):
    made = one_run(seed)
    assert made.checked > 100
    stopped = any(line.endswith(" shutdown") for line in made.history.lines)
    heard = len(made.history.ended) + len(made.history.refused)
    assert stopped or heard > CALLERS / 2  # who comes after the end is not heard


def test_a_seed_is_a_history():
    """The same seed gives the same bytes at the same instants and the same decisions, and another seed others."""
    first, again, other = (one_run(seed, callers=30, check_every=50) for seed in (1001, 1001, 1002))
    assert first.history.lines == again.history.lines
    assert first.history.digest == again.history.digest != other.history.digest
    assert first.history.count > 500
