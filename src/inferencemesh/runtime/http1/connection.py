"""The reading half of an accepted connection: heads, bodies, what is pipelined (contract A11, A12, B4, G1-G3).

A connection reads a head, then a body, then lets the app answer, one request after the other. While a request runs
it goes on reading, so that departure is seen at once; what a caller pipelines is kept raw, bounded, and looked at
only when its turn comes.
"""

from __future__ import annotations

import asyncio
import io
from math import inf
from typing import TYPE_CHECKING

from inferencemesh.runtime.http1.channel import (
    BODY,
    BUDGET,
    FLUSHING,
    HEAD,
    NEXT,
    RUNNING,
    Channel,
    transport_of,
)
from inferencemesh.runtime.http1.framing import ChunkedBody, FramingError, parse_head
from inferencemesh.runtime.http1.heads import CONTINUE
from inferencemesh.runtime.http1.limits import BudgetWaiter
from inferencemesh.runtime.http1.message import BodyPlan, IncomingRequest
from inferencemesh.runtime.http1.responder import Responder

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.server import HttpServer

PIPELINED_BYTES = 64 * 1024
_ANSWERING = (RUNNING, FLUSHING, NEXT)
_CRLF = b"\r\n"


class ServerConnection(Channel):
    """The server's side of one connection."""

    __slots__ = ("_body", "_chunks", "_head", "_max_body", "_need", "_request", "_waiter")

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server, loop)
        self._head: bytearray | None = None  # an incomplete head
        self._request: IncomingRequest | None = None  # whose body is being read
        self._body: io.BytesIO | None = None  # what has come of it
        self._need = 0  # bytes that have not
        self._max_body = 0
        self._chunks: ChunkedBody | None = None
        self._waiter: BudgetWaiter | None = None

    # -- transport callbacks --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the head's clock, or turn the connection away."""
        self._transport = transport_of(transport)
        # With a mark of 0 we are told when the kernel is full and when it has taken everything: `write_paused` is
        # exact, and a finished response of which nothing is left here can no longer depart. The mark at which the
        # app is asked to pause is the Responder's.
        self._transport.set_write_buffer_limits(high=0)
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else ""
        self.due_at = self._loop.time() + self._server.limits.header_timeout_s
        refusal = self._server.admit(self)
        if refusal is None:
            return
        code, message = refusal
        if code:
            self._fail(code, message)
        else:
            self._abort()

    def data_received(self, data: bytes) -> None:
        """Bytes from the caller, given to what the connection is doing."""
        state = self._state
        if state == HEAD:
            self._read_head(data)
        elif state == BODY:
            self._read_body(data, 0)
        elif state in _ANSWERING:
            if len(self._tail) + len(data) > PIPELINED_BYTES:
                self._depart("flood")
            else:
                self._tail += data
        elif state == BUDGET:  # a read that was under way when reading was paused
            self._tail += data

    def eof_received(self) -> bool | None:
        """The caller's FIN, a half-close included, ends whatever goes on (contract B4)."""
        self._depart("client_gone")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the transport, whoever made it."""
        self._server.forget(self)
        self._depart("client_gone")

    # -- heads --

    def _read_head(self, data: bytes) -> None:
        buf = self._head
        if buf is None:
            start = (
                2 if data[:2] == _CRLF else 0
            )  # one empty line before a request is tolerated (RFC 9112, 2.2)
            end = data.find(b"\r\n\r\n", start)
            if end < 0:
                self._hold_head(data, 0)
                return
        else:
            held = len(buf)
            buf += data
            start = 2 if buf[:2] == _CRLF else 0
            end = buf.find(b"\r\n\r\n", max(start, held - 3))
            if end < 0:
                self._hold_head(data, held)
                return
            data = bytes(buf)
            self._head = None
        end += 4
        limits = self._server.limits
        if end - start > limits.header_bytes:
            self._fail("headers_too_large", f"The request head is larger than {limits.header_bytes} bytes.")
            return
        try:
            request = parse_head(data[start:end], limits.header_fields)
        except FramingError as fault:
            self._fail(fault.code, fault.message)
            return
        request.conn = self
        request.peer = self.peer
        request.head_at = self._loop.time()
        request._budget = self._server.budget
        try:
            plan = self._server.app.on_head(request)
        except BaseException as error:
            self._app_failed("on_head", error, request)
            return
        if isinstance(plan, BodyPlan):
            self._plan_body(request, plan, data, end)
        elif request.chunked or request.content_length:
            self._answer(plan, request, close=True)
        else:
            self._tail = data[end:]
            self._answer(plan, request, close=False)

    def _hold_head(self, data: bytes, held: int) -> None:
        """Keep an incomplete head of which `held` bytes were here before, unless it can not become a good one."""
        buf = self._head
        if buf is None:
            buf = self._head = bytearray(data)
        start = 2 if buf[:2] == _CRLF else 0
        if len(buf) == start:
            return  # an empty line, and no request begun
        if held <= start:
            self.due_at = self._loop.time() + self._server.limits.header_timeout_s
        limit = self._server.limits.header_bytes
        split_line_end = held > 0 and buf[held - 1] == 13 and data[:1] == b"\n"
        first = buf[start]
        if len(buf) - start > limit:
            self._fail("headers_too_large", f"The request head is larger than {limit} bytes.")
        elif data.count(b"\n") != data.count(_CRLF) + split_line_end:
            self._fail("invalid_request", "Lines of the request head must end in CR LF.")
        elif not 65 <= first <= 90 and not (first == 13 and len(buf) == 1):
            self._fail("invalid_request", "This is not an HTTP/1.1 request.")

    # -- bodies --

    def _plan_body(self, request: IncomingRequest, plan: BodyPlan, data: bytes, end: int) -> None:
        length = request.content_length
        within_s = self._server.limits.body_timeout_s
        if plan.timeout_s is not None:
            within_s = min(within_s, plan.timeout_s)
        if not request.chunked and not length:
            self._tail = data[end:]
            self._run(request)
            return
        self._request = request
        self._max_body = min(plan.max_bytes, self._server.budget.limit)
        if length:
            if length > self._max_body:
                self._too_large(request)
                return
            self._need = length
            if len(data) - end >= length:  # it came with the head, so its memory is taken already
                self._reserve_read(request, length)
                self._read_body(data, end, paid=True)
                return
        else:
            self._chunks = ChunkedBody(self._server.limits.header_bytes)
        self._state = BODY
        self.due_at = request.head_at + within_s
        if len(data) > end:
            self._read_body(data, end)
        elif request.expects_continue:
            self.write(CONTINUE)

    def _too_large(self, request: IncomingRequest) -> None:
        self._fail("body_too_large", f"The request body is larger than {self._max_body} bytes.", request)

    def _reserve_read(self, request: IncomingRequest, n: int) -> None:
        """Book bytes that one read has brought already, whether there is room or not."""
        self._server.budget.take(n)
        request._reserved += n

    def _read_body(self, data: bytes, offset: int, *, paid: bool = False) -> None:
        """Take body bytes. Memory is reserved as they come (`paid`: it was): an announced length holds nothing."""
        request = self._request
        if request is None:
            return
        if self._chunks is not None:
            self._read_chunks(request, self._chunks, data[offset:] if offset else data)
            return
        need = self._need
        end = offset + need
        have = len(data) - offset
        if not paid:
            grown = min(have, need)
            if not self._server.budget.reserve(grown):
                self._wait_for_memory(grown, data[offset:])
                return
            request._reserved += grown
        body = self._body
        if have < need:
            if body is None:
                body = self._body = io.BytesIO()
            body.write(memoryview(data)[offset:])
            self._need = need - have
            return
        if body is None:
            request.body = data[offset:end]
        else:
            body.write(memoryview(data)[offset:end])
            request.body = body.getvalue()
            self._body = None
        self._tail = data[end:] if have > need else b""
        self._request = None
        self._run(request)

    def _read_chunks(self, request: IncomingRequest, chunks: ChunkedBody, data: bytes) -> None:
        try:
            chunks.feed(data)
        except FramingError as error:
            self._fail(error.code, error.message, request)
            return
        if chunks.size > self._max_body:
            self._too_large(request)
            return
        grown = chunks.size - request._reserved
        if grown:
            if not self._server.budget.reserve(grown):
                self._wait_for_memory(grown, b"")
                return
            request._reserved += grown
        if chunks.complete:
            self._chunks_read(request, chunks)

    def _chunks_read(self, request: IncomingRequest, chunks: ChunkedBody) -> None:
        request.body = chunks.take()
        if chunks.extra:
            request.keep_alive = False  # what follows cannot be attributed: it is the last request here
        self._chunks = None
        self._request = None
        self._run(request)

    def _wait_for_memory(self, n: int, held: bytes) -> None:
        self._state = BUDGET
        self._tail = held
        self._transport.pause_reading()
        self._waiter = self._server.budget.wait(n, self._memory_granted)

    def _memory_granted(self) -> None:
        """Runs inside somebody's release: note it, and go on in a step of our own."""
        waiter, request = self._waiter, self._request
        if waiter is not None and request is not None:
            self._waiter = None
            request._reserved += waiter.n
            self._loop.call_soon(self._memory_at_hand, request, waiter.n)

    def _memory_at_hand(self, request: IncomingRequest, n: int) -> None:
        if self._state != BUDGET or self._request is not request:
            return
        self._state = BODY
        held, self._tail = self._tail, b""
        self._transport.resume_reading()
        chunks = self._chunks
        if chunks is not None and chunks.complete:
            self._chunks_read(request, chunks)
        elif chunks is not None:
            if held:
                self._read_body(held, 0)
        elif held:
            more = min(len(held), self._need) - n  # of a read that was under way when reading was paused
            if more > 0:
                self._reserve_read(request, more)
            self._read_body(held, 0, paid=True)

    # -- running --

    def _run(self, request: IncomingRequest) -> None:
        if len(self._tail) > PIPELINED_BYTES:
            request.release_body()
            self._abort()
            return
        self._state = RUNNING
        self.due_at = inf
        responder = self._responder = Responder(self, request)
        try:
            self._server.app.on_request(request, responder)
        except BaseException as error:
            request.release_body()
            if self._responder is not responder:  # answered, or departed
                self.report("on_request", error)
            elif responder.started:
                self._depart("internal")
                self.report("on_request", error)
            else:
                self._responder = None
                self._app_failed("on_request", error, request)
                responder.depart("internal")

    def _app_failed(self, where: str, error: BaseException, request: IncomingRequest) -> None:
        self._fail("internal", "The gateway failed on this request.", request)
        self.report(where, error)

    # -- for the writing half --

    def _idle(self) -> bool:
        return self._head is None or self._head == _CRLF

    def _reading(self) -> IncomingRequest | None:
        return self._request

    def _forget_request(self) -> None:
        self._head = None
        self._body = None
        self._chunks = None
        waiter, self._waiter = self._waiter, None
        request, self._request = self._request, None
        if waiter is not None:
            self._server.budget.cancel(waiter)
        if request is not None:
            request.release_body()
