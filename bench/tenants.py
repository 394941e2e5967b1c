"""Mixed tenants over real sockets: callers that come back when they are told to, and what became of each request.

The load is seeded: every caller draws the same requests and pauses in every run, whatever it is answered.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

import orjson

from inferencemesh.runtime.http1.client import ConnectionPool, UpstreamLost

INTERVAL_MS = 50  # between two tokens of an answer
PATIENCE = 50  # tries of one request
CONTENT = b'"content":"'


@dataclass(frozen=True)
class Crowd:
    """One tenant and its callers: each has one request at a time, and pauses `pause_s` on average between two."""

    name: str
    weight: float
    callers: int
    pause_s: float
    tokens: tuple[int, int]  # an answer's least and most; n tokens take n - 1 intervals
    about: str


CROWDS = (
    Crowd("long", 1.0, 60, 0.0, (17, 41), "60 callers at once, streams of 0.8 to 2 s"),
    Crowd("short", 1.0, 60, 0.0, (7, 9), "60 callers at once, streams of 0.3 to 0.4 s"),
    Crowd("double", 2.0, 8, 0.2, (9, 21), "8 callers with pauses, streams of 0.4 to 1 s"),
    Crowd("light", 1.0, 1, 0.4, (3, 3), "one stream of 0.1 s now and then"),
)


@dataclass
class Ask:
    """One request of a caller with all its tries. Instants are monotonic; None: not yet, or never."""

    tenant: str
    first_at: float
    refusals: list[str] = field(default_factory=list)  # codes
    wait_s: float | None = None  # in the line, at the try that was served
    granted_at: float | None = None
    content_at: float | None = None
    ended_at: float | None = None
    given_up_at: float | None = None


class _Reader:
    """Notes an answer's head, first content and end (`runtime.http1.client.ResponseSink`)."""

    def __init__(self, ask: Ask) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self._ask = ask
        self._sent_at = time.monotonic()

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, {name.lower(): value for name, value in headers}
        if status == 200:
            self._ask.wait_s = int(self.headers[b"x-mesh-queue-ms"]) / 1000
            self._ask.granted_at = self._sent_at + self._ask.wait_s

    def on_body(self, chunk: bytes) -> None:
        if self._ask.content_at is None:
            self.body += chunk
            if self.status == 200 and CONTENT in self.body:
                self._ask.content_at = time.monotonic()

    def on_read(self) -> None:
        """Nothing to do with a read as such."""

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_lost(self, lost: UpstreamLost) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(str(lost)))


class Load:
    """The callers of all crowds. `asks` holds what they asked for so far, open requests included."""

    def __init__(self, port: int, model: str, seed: int, crowds: tuple[Crowd, ...] = CROWDS) -> None:
        self.asks: list[Ask] = []
        self._model = model
        self._seed = seed
        self._crowds = crowds
        self._pool = ConnectionPool(f"http://127.0.0.1:{port}", connect_timeout_s=5.0)
        self._tasks: list[asyncio.Task[None]] = []

    async def warm(self, requests: int, at_once: int) -> None:
        """Let the gateway measure how long requests last, as it has after a minute of work; nothing is noted."""
        rng = random.Random(self._seed)
        gate = asyncio.Semaphore(at_once)
        crowds = [crowd for crowd in self._crowds for _ in range(crowd.callers)]

        async def one(number: int) -> None:
            async with gate:
                crowd = rng.choice(crowds)
                tokens = min(rng.randint(*crowd.tokens), 8)
                await self._served(Ask(crowd.name, 0.0), tokens, random.Random(number))

        await asyncio.gather(*(one(number) for number in range(requests)))

    def start(self) -> None:
        """All callers begin, in a mixed order."""
        callers = [(crowd, number) for crowd in self._crowds for number in range(crowd.callers)]
        random.Random(self._seed).shuffle(callers)
        for crowd, number in callers:
            rng = random.Random(f"{self._seed} {crowd.name} {number}")
            self._tasks.append(asyncio.ensure_future(self._caller(crowd, rng)))

    async def stop(self) -> None:
        """Everybody leaves. Raises what went wrong, if anything did."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pool.close()
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def check(self) -> None:
        """Raise what ended a caller, if anything did: none ends by itself."""
        for task in self._tasks:
            if task.done():
                task.result()
                raise RuntimeError("a caller has ended")

    async def _caller(self, crowd: Crowd, rng: random.Random) -> None:
        back = random.Random(rng.random())  # apart: how often it is refused must not change what it asks for
        while True:
            if crowd.pause_s:
                await asyncio.sleep(rng.expovariate(1 / crowd.pause_s))
            ask = Ask(crowd.name, time.monotonic())
            self.asks.append(ask)
            try:
                await self._served(ask, rng.randint(*crowd.tokens), back)
            finally:
                if ask.ended_at is None:
                    ask.given_up_at = time.monotonic()

    async def _served(self, ask: Ask, tokens: int, back: random.Random) -> None:
        """Ask until it is answered, as the SDKs do: a refused caller comes back after the time that it was told."""
        content = f"Hello [[sim tokens={tokens} interval={INTERVAL_MS}ms]]"
        body = orjson.dumps(
            {"model": self._model, "stream": True, "messages": [{"role": "user", "content": content}]}
        )
        for tries in range(PATIENCE):
            reader = await self._once(ask, body, tries)
            if reader.status == 200:
                ask.ended_at = time.monotonic()
                return
            if b"retry-after-ms" not in reader.headers:
                raise RuntimeError(f"{ask.tenant}: {reader.status} {reader.body!r}")
            ask.refusals.append(reader.headers[b"x-mesh-code"].decode())
            told_s = int(reader.headers[b"retry-after-ms"]) / 1000
            await asyncio.sleep(told_s * (1.0 + 0.1 * back.random()))
        raise RuntimeError(f"{ask.tenant}: refused {PATIENCE} times")

    async def _once(self, ask: Ask, body: bytes, tries: int) -> _Reader:
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer key-%b\r\nx-stainless-retry-count: %d\r\ncontent-length: %d\r\n\r\n"
            % (ask.tenant.encode(), tries, len(body))
        )
        conn = await self._pool.acquire()
        reader = _Reader(ask)
        try:
            conn.request([head + body], reader)
            await reader.done
        except BaseException:
            conn.abort()
            raise
        return reader
