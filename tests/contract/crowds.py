"""Crowds of callers before a gateway in the test's own loop, over real sockets, and what each tenant had of the slots.

Requests last tens of milliseconds here, so that hundreds of them fit into a test; `brief` brings what is charged at
least, and what is believed before anything was measured, into proportion.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import inferencemesh.core.metered as charges
from inferencemesh.core.events import Event, RequestEnded, WaitEnded
from inferencemesh.runtime.gate import Gate
from inferencemesh.runtime.limits import raise_open_file_limit
from inferencemesh.serving.gateway import Gateway
from tests.contract.support import TIMEOUT_S, Call, chat, post, until
from tests.runtime.inprocess import world

Script = Callable[[random.Random], str]


def brief(patch: pytest.MonkeyPatch) -> None:
    """As with requests of minutes: the least charge and the first guesses are small beside what requests cost."""
    patch.setattr(charges, "LEAST_S", 0.002)
    patch.setattr(charges, "PRIOR_S", 0.05)
    patch.setattr(charges, "LEAST_TOKENS", 1.0)
    patch.setattr(charges, "PRIOR_TOKENS", 20.0)


def tenant(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "keys": [{"sha256": hashlib.sha256(f"key-{name}".encode()).hexdigest()}], **more}


def key(name: str) -> str:
    return f"authorization: Bearer key-{name}"


def metered(script: str) -> bytes:
    """A stream at whose end the backend tells the tokens."""
    return chat(script, stream_options={"include_usage": True})


@dataclass
class Watch:
    """What a gateway did, by its own events."""

    gateway: Gateway
    ended: list[tuple[RequestEnded, float]] = field(default_factory=list)  # with the loop's time
    grants: list[str] = field(default_factory=list)  # tenants that came out of the line, in order
    releases_waited: dict[str, list[int]] = field(
        default_factory=dict
    )  # by tenant, of requests that had waited
    _offered: dict[str, int] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def port(self) -> int:
        return self.gateway.port

    @property
    def released(self) -> int:
        """Slots given back so far (all requests here are one slot wide)."""
        return self.gateway.snapshot().totals.settled

    def waiting(self, name: str) -> int:
        return sum(one.waiting for one in self.gateway.snapshot().tenants if one.name == name)

    def running(self, name: str) -> int:
        return sum(one.running for one in self.gateway.snapshot().tenants if one.name == name)

    def on_offer(self, name: str) -> None:
        self._offered[name] = self.released

    def on_event(self, event: Event) -> None:
        if isinstance(event, RequestEnded) and event.model == "demo":
            self.ended.append((event, asyncio.get_running_loop().time()))
        elif isinstance(event, WaitEnded) and event.result == "granted":
            self.grants.append(event.tenant)
            waited = self.released - self._offered[event.tenant]
            self.releases_waited.setdefault(event.tenant, []).append(waited)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until events have made `condition` true."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def all_wait(self, name: str, count: int) -> None:
        """Wait until the gateway has taken in so many requests of a tenant, all of which wait."""
        await until(lambda: self.waiting(name) == count, show=lambda: self.waiting(name))

    async def more_ended(self, count: int) -> None:
        """Wait until so many more requests have ended."""
        before = len(self.ended)
        await self.until(lambda: len(self.ended) >= before + count)

    async def granted(self, count: int) -> None:
        """Wait until so many requests have come out of the line."""
        await self.until(lambda: len(self.grants) >= count)

    def slot_seconds(self, begin: float, end: float) -> Counter[str]:
        """Slots held from `begin` to `end`, by tenant."""
        held: Counter[str] = Counter()
        for event, at in self.ended:
            granted = at - event.duration_s + event.wait_s
            held[event.tenant] += max(0.0, min(at, end) - max(granted, begin))  # type: ignore[assignment]
        for exchange in self.gateway.live:
            lease = exchange.request.lease
            if lease is not None and exchange.request.model == "demo":
                held[exchange.request.tenant] += max(0.0, end - max(lease.granted_at, begin))  # type: ignore[assignment]
        return held

    def tokens(self, output_weight: float) -> Counter[str]:
        """Tokens by tenant so far, those of running requests included; all prompts are of one length here."""
        served: Counter[str] = Counter()
        for event, _ in self.ended:
            served[event.tenant] += event.tokens_in + output_weight * event.tokens_out  # type: ignore[assignment, operator]
        prompt = self.ended[0][0].tokens_in
        for exchange in self.gateway.live:
            lease = exchange.request.lease
            if lease is not None and exchange.request.model == "demo":
                served[exchange.request.tenant] += prompt + output_weight * lease.output_tokens  # type: ignore[assignment, operator]
        return served


@contextlib.asynccontextmanager
async def watched(
    patch: pytest.MonkeyPatch, *, fairness: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Watch]:
    """A running gateway with this fairness and long lines, and its watch.

    The model `held` has the same slots; what its requests last teaches nothing about those of `demo`.
    """
    raise_open_file_limit()
    queue = {"max_waiting": 1000, "timeout": "60s", "refuse_hopeless": False}
    async with world(
        server={"port": 0, "limits": {"connections": 2000}},
        models=[
            {"name": "demo", "backends": ["sim"]},
            {"name": "held", "upstream_name": "demo", "backends": ["sim"]},
        ],
        admission={"queue": queue, "fairness": fairness or {}},
        **sections,
    ) as (gateway, _sim):
        watch = Watch(gateway)
        gateway.hub.subscribe(watch.on_event)
        offer = Gate.offer

        def seen(gate: Gate, request: Any) -> None:
            watch.on_offer(request.tenant)
            offer(gate, request)

        patch.setattr(Gate, "offer", seen)
        yield watch


async def send(watch: Watch, name: str, count: int, script: Script, *headers: str) -> None:
    """`count` callers of a tenant send a request each; what they are answered stays in their sockets.

    All of them wait in the line from then on, however busy the machine is.
    """
    rng = random.Random(name)
    bodies = [post(metered(script(rng)), key(name), *headers) for _ in range(count)]
    await asyncio.gather(*(Call.open(watch.port, body) for body in bodies))


@contextlib.asynccontextmanager
async def all_slots_held(watch: Watch, name: str, slots: int) -> AsyncIterator[None]:
    """A tenant has every slot as long as the block lasts, so that what is sent in it waits."""
    held = [
        await Call.open(watch.port, post(chat("hang=after:1", model="held"), key(name))) for _ in range(slots)
    ]
    for call in held:
        await call.content()
    yield
    for call in held:
        call.leave()


def lasting(least_ms: int, most_ms: int) -> Script:
    """Streams that last so long."""
    return lambda rng: f"tokens=2 interval={rng.randint(least_ms, most_ms)}ms"
