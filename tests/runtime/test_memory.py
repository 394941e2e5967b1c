"""A request that has ended leaves nothing to the garbage collector: its memory is free at once, for the next."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from inferencemesh.core.request import Lease, Request
from inferencemesh.runtime.attempt import Attempt
from inferencemesh.runtime.exchange import Exchange
from tests.contract.support import ask, chat
from tests.runtime.inprocess import settled, wait_for, world

MANY = 150


def left() -> Counter[str]:
    """What exists of requests, without a look for circles."""
    return Counter(
        type(kept).__name__ for kept in gc.get_objects() if type(kept) in (Request, Lease, Exchange, Attempt)
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(chat("tokens=2", stream=False), id="plain"),
        pytest.param(chat("tokens=2"), id="stream"),
        pytest.param(chat("status=503"), id="retried"),
        pytest.param(chat("cut=after:1"), id="cut"),
    ],
)
def test_nothing_is_left_in_a_circle(body: bytes) -> None:
    async def main() -> None:
        async with world(backend={"breaker": {"min_requests": 1_000_000}}) as (gateway, _):
            gc.disable()
            try:
                before = left()
                for _ in range(MANY):
                    await ask(gateway.port, body)
                await settled(gateway)
                # The heap of charges may still have 65 leases that are freed, with their requests, and no more.
                await wait_for(lambda: sum((left() - before).values()) <= 2 * 66, lambda: left() - before)
            finally:
                gc.enable()

    asyncio.run(main())
