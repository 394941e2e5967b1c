"""The demo's mixed load: one tenant floods, one works steadily, one comes in bursts, and some leave early.

Everything is bounded: each tenant has a fixed number of callers, and each caller has one request at a time.
"""

from __future__ import annotations

import asyncio
import random

import orjson

from inferencemesh.runtime.http1.client import ClientConnection, ConnectError, ConnectionPool, UpstreamLost

# tenant → (callers, mean pause between two requests in seconds, tokens of an answer)
TENANTS = {"red": (24, 0.0, 60), "green": (2, 0.5, 20), "blue": (6, 2.0, 40)}
LEAVES_EARLY = 0.1  # share of callers that hang up in the middle of an answer


class _Reader:
    """Takes an answer, or hangs up after the first content."""

    def __init__(self, conn: ClientConnection, *, leave: bool, done: asyncio.Future[int]) -> None:
        self._conn = conn
        self._leave = leave
        self._status = 0
        self.done = done

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._status = status

    def on_body(self, chunk: bytes) -> None:
        pass

    def on_read(self) -> None:
        if self._leave and self._status == 200:
            self._conn.abort()
            self._resolve()

    def on_end(self) -> None:
        self._resolve()

    def on_lost(self, lost: UpstreamLost) -> None:
        self._resolve()

    def _resolve(self) -> None:
        if not self.done.done():
            self.done.set_result(self._status)


async def storm(port: int, model: str, *, seed: int = 1) -> None:
    """Load the gateway on `port` until cancelled."""
    rng = random.Random(seed)  # noqa: S311 - a load pattern
    pool = ConnectionPool(f"http://127.0.0.1:{port}", connect_timeout_s=2.0)
    try:
        async with asyncio.TaskGroup() as group:
            for tenant, (callers, pause_s, tokens) in TENANTS.items():
                for _ in range(callers):
                    group.create_task(_caller(pool, tenant, model, pause_s, tokens, rng))
    finally:
        await pool.close()


async def _caller(
    pool: ConnectionPool, tenant: str, model: str, pause_s: float, tokens: int, rng: random.Random
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        count = max(4, int(rng.expovariate(1 / tokens)))
        content = f"Hello from {tenant} [[sim tokens={min(count, 200)} interval=40ms]]"
        body = orjson.dumps(
            {"model": model, "stream": True, "messages": [{"role": "user", "content": content}]}
        )
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer demo-%b\r\ncontent-length: %d\r\n\r\n" % (tenant.encode(), len(body))
        )
        try:
            conn = await pool.acquire()
        except ConnectError:
            await asyncio.sleep(1.0)
            continue
        done: asyncio.Future[int] = loop.create_future()
        try:
            conn.request([head + body], _Reader(conn, leave=rng.random() < LEAVES_EARLY, done=done))
            status = await done
        except asyncio.CancelledError:
            conn.abort()
            raise
        if status != 200:
            await asyncio.sleep(1.0 + rng.random())
        elif pause_s:
            await asyncio.sleep(rng.expovariate(1 / pause_s))
