"""The gate's one timer under virtual time: nobody waits longer than until the instant at which it could go on."""

from __future__ import annotations

import random

import pytest

from inferencemesh.core.admission import Admission
from inferencemesh.core.model import BackendSpec, BreakerSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.request import Request, RequestState
from inferencemesh.runtime.gate import Gate
from tests.virtual.loop import VirtualLoop, run


def test_D2_a_breaker_that_half_opens_is_noticed_by_those_who_wait() -> None:
    loop = VirtualLoop(1)

    async def main() -> None:
        admission = Admission(
            [BackendSpec("a", 1), BackendSpec("b", 1)],
            [ModelSpec("m", ("a", "b"), queue_timeout_s=60.0)],
            [TenantSpec("t")],
            Limits(),
            rng=random.Random(1),
            breaker=BreakerSpec(min_requests=1, open_for_s=7.0),
        )
        gate = Gate(admission, loop=loop, emit=lambda _: None, bug=lambda *_: None)
        asked = [
            Request(str(n), "t", "m", arrived_at=loop.time(), deadline_at=loop.time() + 600) for n in range(3)
        ]
        for request in asked:
            gate.offer(request)
        first, _, waiter = asked
        assert waiter.state is RequestState.WAITING
        assert first.lease is not None
        gate.report(first.lease.backend.name, ok=False)
        gate.release(first.lease)  # its slot is free, and its breaker open
        began_at = loop.time()
        lease = await gate.granted(waiter)
        assert lease.backend is first.lease.backend
        assert loop.time() - began_at == pytest.approx(7.0)
        gate.close()

    run(loop, main())
