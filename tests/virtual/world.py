"""A whole gateway and its simulated backends on the virtual network, with the books looked at in every turn."""

from __future__ import annotations

import contextlib
import gc
import io
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from hashlib import blake2b
from typing import Any, TypeVar
from unittest import mock

from inferencemesh.config.load import from_document
from inferencemesh.core.events import Event, RequestEnded, RequestRefused
from inferencemesh.core.request import LeaseState, Request
from inferencemesh.runtime.attempt import PLAIN_HELD_BYTES
from inferencemesh.runtime.http1 import heads, pool, server
from inferencemesh.serving.gateway import Gateway
from inferencemesh.sim.cutter import Cutter
from inferencemesh.sim.server import SimServer
from inferencemesh.telemetry.lines import request_fields
from inferencemesh.telemetry.log import Log
from tests.virtual.loop import VirtualLoop
from tests.virtual.net import Listener, Network, Socket, Weather

Item = TypeVar("Item")
# What may wait for one caller: the mark and one read more; a plain answer is held whole.
STREAM_BYTES = 64 * 1024 + 2 * 256 * 1024
PLAIN_BYTES = PLAIN_HELD_BYTES + STREAM_BYTES


class Ordered(dict[Item, None]):
    """Stands in for the sets of live things: theirs is the order of addresses, which no seed can repeat."""

    def add(self, item: Item) -> None:
        self[item] = None

    def discard(self, item: Item) -> None:
        self.pop(item, None)


class History:
    """What happened, in order: a digest, and the last lines for people."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._digest = blake2b(digest_size=16)
        self.count = 0
        self.ended: dict[str, list[RequestEnded]] = {}
        self.refused: dict[str, list[RequestRefused]] = {}
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        line = f"{self._loop.time():.6f} {line}"
        self._digest.update(line.encode())
        self.count += 1
        self.lines.append(line)

    def event(self, event: Event) -> None:
        """A subscriber of the gateway's hub."""
        if isinstance(event, RequestEnded | RequestRefused):
            told: dict[str, list[Any]] = self.ended if isinstance(event, RequestEnded) else self.refused
            told.setdefault(event.id, []).append(event)
            self.note(repr({**request_fields(event), "at": 0.0}))
        else:
            self.note(repr(event))

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


class World:
    """See the module. `document` is the gateway's configuration, its backends' URLs filled in."""

    def __init__(self, loop: VirtualLoop, history: History, net: Network) -> None:
        self.loop = loop
        self.history = history
        self.net = net
        self.sims: dict[str, SimServer] = {}
        self.bugs: list[str] = []
        self.frozen: set[str] = set()  # engines that stood still, until they have caught up
        self.gateway: Gateway
        self.checked = 0
        self.fates: Counter[str] = Counter()  # of what callers asked, by cause or code

    # -- invariants --

    def check(self) -> None:
        """What must hold between any two turns."""
        gateway = self.gateway
        gateway.admission.check()
        self.checked += 1
        running = dict.fromkeys(self.sims, 0)
        draining = dict(running)
        alive: list[Request] = []
        for exchange in gateway.live:
            request = exchange.request
            alive.append(request)
            lease = request.lease
            if lease is not None and lease.state is LeaseState.RUNNING:
                running[lease.backend.name] += lease.width
            responder = exchange.responder
            most = STREAM_BYTES if exchange.stream else PLAIN_BYTES
            assert responder.unsent_bytes() <= most, responder.unsent_bytes()
        for drain in gateway.drains._open:
            assert drain.lease.state is LeaseState.DRAINING, drain.lease
            draining[drain.lease.backend.name] += drain.lease.width
        snapshot = gateway.snapshot()
        for backend in snapshot.backends:
            name = backend.name
            # Every slot has an owner who will give it back (B1, B5) ...
            assert backend.running == running[name], f"{name}: {backend.running} of {running[name]} run"
            assert backend.draining == draining[name], f"{name}: {backend.draining} of {draining[name]} drain"
            # ... and the backend works on nothing that is not in the books (A1).
            jobs = sum(job.width for job in self.sims[name].engine._jobs)
            held = running[name] + draining[name]
            if jobs <= held:
                if not self.sims[name].engine.clock.paused:
                    self.frozen.discard(name)
            else:
                assert name in self.frozen, f"{name} works on {jobs}, and {held} are held"
        totals = snapshot.totals
        assert totals.waiting + totals.running <= len(alive), "somebody is in the books whom nobody serves"
        assert gateway.budget.used <= gateway.budget.limit
        wake_at = gateway.admission.next_wake_at()
        armed_at = gateway.gate._armed_at if gateway.gate._timer is not None else float("inf")
        if totals.waiting:
            assert wake_at is None or armed_at <= wake_at, f"due at {wake_at}, and woken at {armed_at}"

    def check_rest(self) -> None:
        """What must be left when everybody has gone."""
        gateway = self.gateway
        gateway.admission.check()
        assert not gateway.live
        assert not len(gateway.drains)
        totals = gateway.snapshot().totals
        assert totals.waiting == totals.running == 0
        assert totals.grants == totals.settled
        ended = totals.completed + totals.failed + totals.cancelled + totals.expired
        assert totals.accepted == ended == sum(map(len, self.history.ended.values())), totals
        assert gateway.budget.used == gateway.budget.waiting == 0
        assert gateway.gate._waiting == {}
        assert self.bugs == []
        for sim in self.sims.values():
            assert not sim.engine._jobs

    def at_rest(self) -> bool:
        gateway = self.gateway
        pools = [upstream.pool for upstream in gateway.upstreams.values()]
        return (
            not gateway.live
            and not len(gateway.drains)
            and gateway.http.connections == 0
            and all(pool.in_use == pool.connecting == 0 for pool in pools)
            and not any(sim.engine._jobs for sim in self.sims.values())
        )

    # -- the weather of the world --

    def crash(self, name: str) -> None:
        """A backend dies: its connections are reset, its work is gone, nobody listens."""
        self.history.note(f"crash {name}")
        sim = self.sims[name]
        self.net.listeners.pop(sim.port, None)
        sim.reset()
        http = sim._http
        assert http is not None
        for conn in list(http._connections):
            conn.expel()

    def recover(self, name: str, listener: Listener) -> None:
        """It is back."""
        self.history.note(f"recover {name}")
        self.net.listeners[self.sims[name].port] = listener


@contextlib.contextmanager
def seams(net: Network) -> Any:
    """Put the virtual network under the servers and pools, and still the clocks in what they write."""

    async def bind(*_: Any, **__: Any) -> list[Listener]:
        return [net.listen()]

    async def open_socket(_host: str, port: int, _loop: Any) -> Socket:
        return await net.connect(port)

    def unacknowledged(cutter: Cutter) -> int:
        sock: Socket = cutter._connection._transport.get_extra_info("socket")
        return sock.unacknowledged()

    with (
        mock.patch.object(server, "_bind", bind),
        mock.patch.object(pool, "connected_socket", open_socket),
        mock.patch.object(heads, "_common_fields", return_value=b"date: now\r\nserver: inferencemesh\r\n"),
        mock.patch.object(Cutter, "_unacknowledged", unacknowledged),
    ):
        yield


@contextlib.asynccontextmanager
async def world(
    loop: VirtualLoop,
    document: Callable[[dict[str, str]], dict[str, Any]],
    sims: dict[str, SimServer],
    weather: Weather,
) -> AsyncIterator[World]:
    """A running gateway before running backends; `document` gets the URLs of `sims` by their names.

    Leaving it shuts the gateway down in order, and every socket must be closed then.
    """
    history = History(loop)
    net = Network(loop, weather, history.note)
    with seams(net):
        made = World(loop, history, net)
        made.sims = sims
        for sim in sims.values():
            await sim.start()
            net.garbled.add(sim.port)
            sim.engine._jobs = Ordered()  # type: ignore[assignment]
            assert sim._http is not None
            sim._http._connections = Ordered()  # type: ignore[assignment]
        log = Log(io.StringIO(), format="json")
        gateway = made.gateway = Gateway(
            from_document(document({name: sim.url for name, sim in sims.items()})),
            log,
            seed=loop.rng.getrandbits(32),
        )
        gateway.live = Ordered()  # type: ignore[assignment]
        bugs = made.bugs
        gateway._bug = lambda what, bug: bugs.append(f"{what}: {bug!r}")  # type: ignore[method-assign]
        await gateway.start()
        gateway.drains._open = Ordered()  # type: ignore[assignment]
        gateway.http._connections = Ordered()  # type: ignore[assignment]
        for upstream in gateway.upstreams.values():
            upstream.pool._all = Ordered()  # type: ignore[assignment]
        gateway.hub.subscribe(history.event)
        try:
            yield made
            if not gateway._closing:
                await gateway.shut_down()
            for sim in sims.values():
                await sim.close()
        finally:
            loop.each_turn = lambda: None
            log.close()
            gc.unfreeze()  # `Gateway.start` freezes for a process that lives long; here there are many
        assert not net.open, f"sockets are left: {[sock.name for sock in net.open]}"


def seeded(seed: int, *names: object) -> random.Random:
    """A stream of draws of its own, which does not depend on the order in which things happen."""
    return random.Random(":".join(map(str, (seed, *names))))
