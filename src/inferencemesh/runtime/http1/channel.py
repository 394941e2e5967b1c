"""The writing half of an accepted connection: output, back-pressure, stall, departure, and how it ends.

`due_at` is the one instant at which the connection's present state has lasted too long; the server's sweep compares
it, so no request arms a timer. Endings (contract G2): an answer that ends the connection is followed by a lingering
close, which sends FIN and discards input for a short time, because closing with unread input sends RST, and a RST
may overtake the answer.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final, cast

from inferencemesh.runtime.http1.heads import CLOSE, KEEP_ALIVE, bodiless, response_head
from inferencemesh.runtime.http1.message import Answer, IncomingRequest
from inferencemesh.runtime.http1.responder import Responder
from inferencemesh.runtime.http1.sockets import reset_on_close

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.server import HttpServer

# HEAD: idle or within a head. BODY: reading one. BUDGET: reading is paused until there is memory for the body.
# RUNNING: the app answers. FLUSHING: answered, but the kernel has not taken all. NEXT: a pipelined head is at hand.
# LINGER: our side is closed or about to be, input is discarded. CLOSED: nothing more happens.
HEAD: Final = 0
BODY: Final = 1
BUDGET: Final = 2
RUNNING: Final = 3
FLUSHING: Final = 4
NEXT: Final = 5
LINGER: Final = 6
CLOSED: Final = 7
_ANSWERING = (RUNNING, FLUSHING)


class Channel(ABC):
    """What a connection can do without knowing what it reads.

    An `asyncio.Protocol` in what it answers to and not by descent, as the loops want it: a class that is to be
    compiled (docs/deployment.md, "Speed") cannot descend from one that is not.
    """

    __slots__ = (
        "_ends",
        "_loop",
        "_pressed",
        "_pressed_fresh",
        "_progress",
        "_progress_at",
        "_responder",
        "_server",
        "_state",
        "_tail",
        "_transport",
        "_unread",
        "due_at",
        "peer",
        "write_paused",
    )

    _transport: asyncio.Transport

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._state: int = HEAD
        self._responder: Responder | None = None
        self._tail = b""  # raw bytes behind the running request
        self._ends = False  # the connection ends when the kernel has taken the answer
        self._unread = False  # and input of the caller's may still be under way then
        self.due_at = inf
        self.peer = ""
        self.write_paused = False  # the kernel's buffer is full: bytes wait in ours
        self._progress = 0  # grows with every byte the kernel takes while paused
        self._progress_at = 0.0
        self._pressed = 0  # bytes written while paused
        self._pressed_fresh = False

    # -- output --

    def write(self, data: bytes) -> None:
        """Hand bytes to the transport. Never raises: a transport that cannot write has lost its caller."""
        try:
            self._transport.write(data)
        except Exception:  # uvloop: RuntimeError on a closed handle, before connection_lost has been called
            self._loop.call_soon(self._depart, "client_gone")

    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

    def owns(self, responder: Responder) -> bool:
        """Whether `responder` is the present one: not yet flushed, not departed."""
        return self._responder is responder

    def server_closing(self) -> bool:
        """Whether responses must say `connection: close`."""
        return self._server.closing

    def pause_writing(self) -> None:
        """The kernel is full: from now on progress is watched."""
        self.write_paused = True
        self._pressed = 0
        self._pressed_fresh = True  # the write that filled it is part of the starting size already
        self._progress = -self._transport.get_write_buffer_size()
        if self._state == RUNNING:
            self._watch_progress()

    def resume_writing(self) -> None:
        """The kernel has taken everything."""
        self.write_paused = False
        responder = self._responder
        if self._state == RUNNING:
            self.due_at = inf
        elif self._state == FLUSHING:
            self._settle()
        if responder is not None:
            responder.drained()

    def pressed(self, n: int) -> None:
        """`n` bytes were written while the kernel is full."""
        if self._pressed_fresh:
            self._pressed_fresh = False
        else:
            self._pressed += n

    def _watch_progress(self) -> None:
        self._progress_at = self._loop.time()
        self.due_at = self._progress_at + self._server.limits.send_timeout_s / 4

    def _check_progress(self, now: float) -> None:
        progress = self._pressed - self._transport.get_write_buffer_size()
        limit = self._server.limits.send_timeout_s
        if progress > self._progress:
            self._progress = progress
            self._progress_at = now
        elif now - self._progress_at >= limit:
            self._depart("send_timeout")
            return
        self.due_at = now + limit / 4

    # -- answering --

    def response_done(self, responder: Responder) -> None:
        """The app has written the last byte of the response."""
        self._ends = responder.close
        if self.write_paused:
            self._flush()
        else:
            self._settle()

    def _answer(self, answer: Answer, request: IncomingRequest | None, *, close: bool) -> None:
        """A response that no Responder made. `close` for input that was not read: the connection ends after it."""
        self._unread = close
        close = (
            close or answer.close or self._server.closing or (request is not None and not request.keep_alive)
        )
        status, body = answer.status, answer.body
        framing = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        if close:
            framing += CLOSE
        elif request is not None and request.http10:
            framing += KEEP_ALIVE
        try:
            data = response_head(status, answer.headers, framing)
        except ValueError as error:
            self.report("an Answer", error)
            self._abort()
            return
        if body and not bodiless(status) and (request is None or request.method != "HEAD"):
            data += body
        self._ends = close
        self.write(data)
        self._flush()

    def _flush(self) -> None:
        if self.write_paused:
            self._state = FLUSHING
            self._watch_progress()
        else:
            self._settle()

    def _settle(self) -> None:
        """The kernel has taken the whole answer: on to the next request, or to the end."""
        responder = self._responder
        if responder is not None:
            self._responder = None
            responder.forget()
        if self._ends:
            self._end()
        elif self._tail:
            self._state = NEXT
            self.due_at = inf
            self._loop.call_soon(self._next)
        else:
            self._state = HEAD
            self.due_at = self._loop.time() + self._server.limits.keepalive_s

    def _next(self) -> None:
        if self._state == NEXT:
            data, self._tail = self._tail, b""
            self._state = HEAD
            self.data_received(data)

    # -- endings --

    def _fail(self, code: str, message: str, request: IncomingRequest | None = None) -> None:
        """Answer an error of the caller's and read no further."""
        self._forget_request()
        self._tail = b""
        try:
            answer = self._server.app.on_protocol_error(code, message, request)
        except BaseException as error:
            self._abort()
            self.report("on_protocol_error", error)
            return
        self._answer(answer, request, close=True)

    def _end(self) -> None:
        self._tail = b""
        self.due_at = self._loop.time() + self._server.limits.linger_s
        transport = self._transport
        try:
            if transport.can_write_eof():
                self._state = LINGER
                transport.write_eof()
                transport.resume_reading()
            elif self._unread:  # TLS knows no half-close: the answer's length tells the caller where it ends
                self._state = LINGER
                transport.resume_reading()
            else:
                self._state = CLOSED
                transport.close()
        except Exception:  # gone already
            self._abort()

    def _abort(self) -> None:
        self._state = CLOSED
        self.due_at = inf
        self._tail = b""
        self._forget_request()
        self._transport.abort()

    def cut(self, *, reset: bool) -> None:
        """End the connection in the middle of a response; with `reset` so that it cannot look like its end."""
        if reset:
            self._reset()
        self._responder = None
        self._abort()

    def _reset(self) -> None:
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            reset_on_close(sock)

    def _depart(self, reason: str) -> None:
        """The caller is gone, or cut off for `reason`. The app is told once, synchronously (contract B4)."""
        if self._state == CLOSED:
            return
        responder, self._responder = self._responder, None
        if responder is not None and responder.until_close:
            self._reset()  # one that is cut off must not take this for the body's end
        self._abort()
        if responder is not None:
            responder.depart(reason)

    def close_idle(self) -> None:
        """End the connection if nothing of a request has arrived."""
        if self._state == HEAD and self._idle():
            self._state = CLOSED
            self.due_at = self._loop.time() + self._server.limits.linger_s
            self._transport.close()

    def expel(self) -> None:
        """Cut the connection off: the server ends."""
        if self._state == CLOSED:
            self._transport.abort()
        else:
            self._depart("shutdown")

    def due(self, now: float) -> None:
        """The present state has lasted too long."""
        state = self._state
        if state in _ANSWERING:
            self._check_progress(now)
        elif state == HEAD and self._idle():
            self.close_idle()
        elif state == HEAD:
            self._fail("request_timeout", "The request head did not arrive in time.")
        elif state == BODY:
            self._fail("request_timeout", "The request body did not arrive in time.", self._reading())
        elif state == BUDGET:
            self._fail(
                "queue_bytes_full", "There was no memory for the request body in time.", self._reading()
            )
        elif state == LINGER and not self._transport.can_write_eof():
            self._state = CLOSED
            self.due_at = now + self._server.limits.linger_s
            self._transport.close()  # TLS: with its close_notify
        else:
            self._state = CLOSED
            self.due_at = inf
            self._transport.abort()

    # -- guards --

    def call(self, callback: Callable[[], None]) -> None:
        """Run an app's callback; what it raises is reported, and never reaches the transport's own code."""
        try:
            callback()
        except BaseException as error:
            self.report("a callback of the app", error)

    def report(self, where: str, error: BaseException) -> None:
        """Hand an exception of the app's to the loop's handler; an order to exit goes on its way."""
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise error
        self._loop.call_exception_handler(
            {"message": f"{where} raised", "exception": error, "protocol": self}
        )

    # -- what the reading half knows --

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Bytes from the caller."""

    @abstractmethod
    def _idle(self) -> bool:
        """Whether no byte of a request is held."""

    @abstractmethod
    def _reading(self) -> IncomingRequest | None:
        """The request whose body is being read."""

    @abstractmethod
    def _forget_request(self) -> None:
        """Give back what a request being read holds."""


def transport_of(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """The stream transport that `connection_made` was called with."""
    return cast("asyncio.Transport", transport)
