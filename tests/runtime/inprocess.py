"""A whole gateway and a simulator in the test's own loop, on real loopback sockets, for tests that look inside."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

from inferencemesh.config.load import from_document
from inferencemesh.core.request import LeaseState
from inferencemesh.serving.gateway import Gateway
from inferencemesh.sim.server import SimServer
from inferencemesh.telemetry.log import Log

WITHIN_S = 15.0


@contextlib.asynccontextmanager
async def world(**sections: Any) -> AsyncIterator[tuple[Gateway, SimServer]]:
    """A running gateway in front of a running simulator with 8 slots; `slots` are the gateway's own."""
    sim = SimServer(slots=8, seed=1)
    await sim.start("127.0.0.1", 0)
    slots = sections.pop("slots", 2)
    backend = {
        "name": "sim",
        "url": f"http://127.0.0.1:{sim.port}",
        "engine": "sim",
        "slots": slots,
        "drain": {"policy": "grace", "grace": "0s"},
        "health": {"interval": "1h"},
        **sections.pop("backend", {}),
    }
    document = {
        "server": {"port": 0},
        "admin": {"port": 0},
        "backends": [backend],
        "models": [{"name": "demo", "backends": ["sim"], "queue": {"max_waiting": 16}}],
        "timeouts": {"cleanup": "1s"},
        **sections,
    }
    log = Log(io.StringIO(), format="json")
    gateway = Gateway(from_document(document), log, seed=1)
    with mock.patch.object(
        gc, "collect"
    ):  # for a process that lives long: the most of a start, in a large suite
        await gateway.start()
    try:
        yield gateway, sim
    finally:
        gateway.mesh = gateway.mesh.model_copy(
            update={"server": gateway.mesh.server.model_copy(update={"shutdown_grace": 0.0})}
        )
        await gateway.shut_down()
        await sim.close()
        log.close()
        gc.unfreeze()  # `Gateway.start` freezes for a process that lives long; here there are many


async def settled(gateway: Gateway) -> None:
    """Wait until nothing is held for anybody; then every book must be balanced (contract A5, B2)."""

    def quiet() -> bool:
        totals = gateway.snapshot().totals
        return not gateway.live and not len(gateway.drains) and totals.grants == totals.settled

    await wait_for(quiet, lambda: describe(gateway))
    gateway.admission.check()
    totals = gateway.snapshot().totals
    ended = totals.completed + totals.failed + totals.cancelled + totals.expired
    assert totals.accepted == ended, totals
    assert totals.waiting == totals.running == 0, totals
    await wait_for(lambda: gateway.budget.used == 0, lambda: f"{gateway.budget.used} body bytes are kept")
    pools = [upstream.pool for upstream in gateway.upstreams.values()]
    await wait_for(lambda: all(pool.in_use == 0 for pool in pools), lambda: "an upstream connection is kept")
    assert gateway.gate._waiting == {}


def describe(gateway: Gateway) -> str:
    """What is held, for the message of a failed test."""
    live = [(e.request, str(e.step), str(e.phase), e.request.lease) for e in gateway.live]
    drains = [(drain.lease, drain.state) for drain in gateway.drains._open]
    return f"live={live} drains={drains} {gateway.snapshot()}"


async def wait_for(condition: Any, show: Any) -> None:
    """Wait for a condition, bounded."""
    loop = asyncio.get_running_loop()
    until = loop.time() + WITHIN_S
    while not condition():
        assert loop.time() < until, show()
        await asyncio.sleep(0.002)


def leases_of(gateway: Gateway) -> list[LeaseState]:
    """The states of the live requests' leases."""
    return [e.request.lease.state for e in gateway.live if e.request.lease is not None]
