"""An app that records, a caller and a backend made of plain sockets, and a way to run each test on both loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from inferencemesh.runtime.http1 import (
    Answer,
    BodyPlan,
    ByteBudget,
    ConnectionPool,
    HttpServer,
    IncomingRequest,
    Responder,
    ServerLimits,
    UpstreamLost,
)

WITHIN_S = 10.0
STATUS = {
    "invalid_request": 400,
    "request_timeout": 408,
    "body_too_large": 413,
    "headers_too_large": 431,
    "rate_limit_exceeded": 429,
    "queue_full": 503,
    "queue_bytes_full": 503,
    "internal": 500,
}

both_loops = pytest.mark.parametrize(
    "factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


def run(
    main: Coroutine[Any, Any, None], factory: Callable[[], asyncio.AbstractEventLoop], *, reports: int = 0
) -> None:
    """Run to the end; fail on anything that reached the loop's handler beyond `reports`, or was left open."""
    seen: list[dict[str, Any]] = []

    async def guarded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        async with asyncio.timeout(WITHIN_S * 2):
            await main

    gc.freeze()  # so that the collection below looks at what this test made, and at nothing else
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(guarded())
        gc.collect()
    finally:
        gc.unfreeze()
    assert len(seen) == reports, seen


async def until(condition: Callable[..., Any]) -> None:
    """Wait for a condition, with a generous bound."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - the conditions are anybody's
            await asyncio.sleep(0.001)


async def turns(n: int = 20) -> None:
    """Let the loop turn, so that whatever is going to happen at once has happened."""
    for _ in range(n):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)


class Recorder:
    """Keeps what it is called with. `handler` answers; without one the test does."""

    def __init__(self, handler: Callable[[IncomingRequest, Responder], None] | None = None) -> None:
        self.handler = handler
        self.head: Callable[[IncomingRequest], Answer | BodyPlan] = lambda _: BodyPlan(1 << 20)
        self.calls: list[tuple[IncomingRequest, Responder]] = []
        self.errors: list[tuple[str, str]] = []
        self.departed: list[Responder] = []
        self.flow: list[str] = []

    def on_head(self, request: IncomingRequest) -> Answer | BodyPlan:
        return self.head(request)

    def on_request(self, request: IncomingRequest, responder: Responder) -> None:
        responder.listen(
            on_departure=lambda: self.departed.append(responder),
            on_pause=lambda: self.flow.append("pause"),
            on_resume=lambda: self.flow.append("resume"),
        )
        self.calls.append((request, responder))
        if self.handler is not None:
            self.handler(request, responder)

    def on_protocol_error(self, code: str, message: str, request: IncomingRequest | None) -> Answer:
        self.errors.append((code, message))
        return Answer(STATUS[code], [(b"content-type", b"text/plain")], code.encode())


def echo(request: IncomingRequest, responder: Responder) -> None:
    """Answer with what was asked."""
    responder.send(200, [(b"content-type", b"text/plain")], request.path.encode() + b" " + request.body)
    request.release_body()


@contextlib.asynccontextmanager
async def serving(
    app: Recorder, budget: ByteBudget | None = None, ssl: Any = None, **limits: Any
) -> AsyncIterator[HttpServer]:
    """A server on a port of its own."""
    budget = budget or ByteBudget(1 << 20)
    server = HttpServer(app, ServerLimits(**limits), budget, ssl)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close(0.0)
        for request, _ in app.calls:
            request.release_body()
        assert server.connections == 0
        assert budget.used == 0
        assert budget.waiting == 0


class Clock:
    """The loop that a server's connections see: its time can be put forward."""

    def __init__(self, server: HttpServer) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self.ahead_s = 0.0
        server._loop = self  # type: ignore[assignment]

    def time(self) -> float:
        return self._loop.time() + self.ahead_s

    def call_soon(self, *args: Any) -> asyncio.Handle:
        return self._loop.call_soon(*args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._loop.call_exception_handler(context)

    def advance(self, seconds: float) -> None:
        """Let time pass, and the server notice."""
        self.ahead_s += seconds
        self._server.sweep(self.time())


class Reply:
    """One response, as a caller sees it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, *, whole: bool) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.whole = whole

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"


class Caller:
    """A raw connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, server: HttpServer, **options: Any) -> AsyncIterator[Caller]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **options)
        caller = cls(reader, writer)
        try:
            yield caller
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def half_close(self) -> None:
        self.writer.write_eof()

    def reset(self) -> None:
        reset(self.writer)

    def abort(self) -> None:
        self.writer.transport.abort()

    async def reply(self, *, head: bool = False) -> Reply:
        """The next response; `head` for one to HEAD."""
        async with asyncio.timeout(WITHIN_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            status = int(lines[0].split(" ")[1])
            headers = dict(line.split(": ", 1) for line in lines[1:] if line)
            if head or status in (204, 304) or status < 200:
                return Reply(status, headers, b"", whole=True)
            if headers.get("transfer-encoding") == "chunked":
                body, whole = await self._chunks()
                return Reply(status, headers, body, whole=whole)
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
                return Reply(status, headers, body, whole=True)
            return Reply(status, headers, await self.reader.read(), whole=True)

    async def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        while True:
            try:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                piece = await self.reader.readexactly(size + 2)
            except (asyncio.IncompleteReadError, ConnectionError):
                return body, False
            if not size:
                return body, True
            body += piece[:-2]

    async def rest(self) -> bytes:
        """Everything up to the server's close."""
        async with asyncio.timeout(WITHIN_S):
            return await self.reader.read()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a RST."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    writer.transport.abort()


def get(path: str = "/", *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
    """A request head."""
    lines = [f"{method} {path} HTTP/{version}", "Host: test", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def post(body: bytes, *fields: str, path: str = "/") -> bytes:
    """A request with a body of known length."""
    return get(path, *fields, f"Content-Length: {len(body)}", method="POST") + body


def chunked(*pieces: bytes, fields: tuple[str, ...] = ()) -> bytes:
    """A request with a chunked body."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return get("/", "Transfer-Encoding: chunked", *fields, method="POST") + chunks + b"0\r\n\r\n"


class Sink:
    """Records what a client connection tells it."""

    def __init__(self, **raises: BaseException) -> None:
        self.calls: list[str] = []
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.lost: Any = None  # an UpstreamLost
        self.ended = False
        self.raises = raises
        self.on: dict[str, Callable[[], None]] = {}

    @property
    def over(self) -> bool:
        return self.ended or self.lost is not None

    def _note(self, name: str) -> None:
        self.calls.append(name)
        action = self.on.get(name)
        if action is not None:
            action()
        if name in self.raises:
            raise self.raises[name]

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, headers
        self._note("head")

    def on_body(self, chunk: bytes) -> None:
        self.body += chunk
        self._note("body")

    def on_read(self) -> None:
        self._note("read")

    def on_end(self) -> None:
        self.ended = True
        self._note("end")

    def on_lost(self, lost: UpstreamLost) -> None:
        self.lost = lost
        self._note("lost")


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def backend(handler: Handler, ssl: Any = None) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """A server of raw bytes: its URL, and its connections as they come."""
    writers: list[asyncio.StreamWriter] = []
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await handler(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=ssl)
    scheme = "http" if ssl is None else "https"
    try:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", writers
    finally:
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        server.close()


@contextlib.asynccontextmanager
async def pooled(url: str, **options: Any) -> AsyncIterator[ConnectionPool]:
    """A pool that is closed and empty at the end."""
    pool = ConnectionPool(url, **{"connect_timeout_s": WITHIN_S, **options})
    try:
        yield pool
    finally:
        await pool.close()
        assert (pool.idle, pool.in_use, pool.connecting) == (0, 0, 0)


REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def ask(pool: ConnectionPool, sink: Sink | None = None, data: bytes = REQUEST) -> Sink:
    """One request over the pool, to its end."""
    sink = sink or Sink()
    conn = await pool.acquire()
    conn.request(data, sink)
    await until(lambda: sink.over)
    return sink


def replies(*answers: bytes) -> Handler:
    """Answers each request with the next of `answers`, the last again and again."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(1000):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers[min(number, len(answers) - 1)])

    return handle
