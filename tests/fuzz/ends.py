"""The server's and the client's protocols on transports that only remember."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from inferencemesh.runtime.http1.client_connection import ClientConnection
from inferencemesh.runtime.http1.client_protocol import ClientProtocol
from inferencemesh.runtime.http1.connection import PIPELINED_BYTES, ServerConnection
from inferencemesh.runtime.http1.limits import ByteBudget, ServerLimits
from inferencemesh.runtime.http1.lost import UpstreamLost
from inferencemesh.runtime.http1.message import Answer, BodyPlan, IncomingRequest
from inferencemesh.runtime.http1.pool import ConnectionPool
from inferencemesh.runtime.http1.responder import Responder
from inferencemesh.runtime.http1.server import HttpServer
from tests.fuzz.reference import Message

BODY_BYTES = 2000
BUDGET_BYTES = 4000
_STATUS = {"request_timeout": 408, "body_too_large": 413, "headers_too_large": 431, "internal": 500}


class Loop:
    """As much of an event loop as a protocol asks for."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self._ready: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def time(self) -> float:
        return 1.0

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._ready.append((callback, args))

    def call_exception_handler(self, context: Any) -> None:
        self.reports.append(context)

    def turn(self) -> None:
        while self._ready:
            callback, args = self._ready.pop(0)
            callback(*args)


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.eof = False
        self.reading = True

    def write(self, data: bytes) -> None:
        assert not self.eof
        if not self.closed:
            self.written += data

    def write_eof(self) -> None:
        self.eof = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else default

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class ServerGot:
    """What came of a connection; also the app on it."""

    def __init__(self) -> None:
        self.requests: list[Message] = []
        self.reports: list[Any] = []
        self.budget = ByteBudget(BUDGET_BYTES)
        self.transport = Transport()

    def on_head(self, request: IncomingRequest) -> Answer | BodyPlan:
        return BodyPlan(BODY_BYTES)

    def on_request(self, request: IncomingRequest, responder: Responder) -> None:
        assert len(request.body) <= BODY_BYTES
        version = "HTTP/1.0" if request.http10 else "HTTP/1.1"
        line = b"%b %b %b" % (request.method.encode(), request.target, version.encode())
        self.requests.append(Message(line, request.body, chunked=request.chunked))
        request.release_body()
        responder.send(200, [], b"ok")

    def on_protocol_error(self, code: str, message: str, request: IncomingRequest | None) -> Answer:
        return Answer(_STATUS.get(code, 400), [], b"no")

    def statuses_are_whole(self) -> bool:
        """Every response stands by itself: as many heads as bodies, nothing between."""
        left = bytes(self.transport.written)
        while left:
            head, _, left = left.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 "), head
            if not head.startswith(b"HTTP/1.1 100"):
                left = left[2:] if left[:2] in (b"ok", b"no") else left
        return True


def server_read(reads: Iterable[bytes], *, header_bytes: int) -> ServerGot:
    """One accepted connection, from its first byte to the caller's FIN."""
    got, loop = ServerGot(), Loop()
    limits = ServerLimits(header_bytes=header_bytes)
    http = HttpServer(got, limits, got.budget)
    http._listening = True
    conn = ServerConnection(http, cast("asyncio.AbstractEventLoop", loop))
    transport = got.transport
    conn.connection_made(cast("asyncio.Transport", transport))
    for read in reads:
        if transport.closed:
            break
        conn.data_received(read)
        loop.turn()
        assert len(conn._tail) <= max(PIPELINED_BYTES, len(read))
        assert conn._head is None or len(conn._head) <= header_bytes + len(read) + 2
        assert got.budget.used <= got.budget.limit
    if not transport.closed:
        conn.eof_received()
        loop.turn()
    conn.connection_lost(None)
    loop.turn()
    assert http.connections == 0
    got.reports = loop.reports
    return got


class ClientGot:
    """What came of a response; also its sink."""

    def __init__(self) -> None:
        self.head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self.body = b""
        self.lost: str | None = None
        self.ends = 0
        self.peak_idle = 0
        self.reports: list[Any] = []

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert self.head is None
        assert not self.ends
        assert 200 <= status <= 999
        self.head = (status, list(headers))

    def on_body(self, chunk: bytes) -> None:
        assert self.head is not None
        assert not self.ends
        assert chunk
        self.body += chunk

    def on_read(self) -> None:
        assert not self.ends

    def on_end(self) -> None:
        self.ends += 1

    def on_lost(self, lost: UpstreamLost) -> None:
        self.ends += 1
        self.lost = lost.code


def client_read(reads: Iterable[bytes]) -> ClientGot:
    """One response, from its first byte to the backend's FIN."""
    got, loop = ClientGot(), Loop()
    pool = ConnectionPool("http://192.0.2.1:1", connect_timeout_s=1.0)
    protocol = ClientProtocol(pool, cast("asyncio.AbstractEventLoop", loop))
    pool._all.add(protocol)
    transport = Transport()
    protocol.connection_made(cast("asyncio.Transport", transport))
    handle = ClientConnection(protocol, reused=False)
    protocol.user = handle
    handle.request(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", got)
    for read in reads:
        if transport.closed:
            break
        protocol.data_received(read)
        loop.turn()
        got.peak_idle = max(got.peak_idle, pool.idle)
    if not transport.closed:
        protocol.eof_received()
    protocol.connection_lost(None)
    loop.turn()
    assert pool.in_use == pool.idle == 0
    got.reports = loop.reports
    return got
