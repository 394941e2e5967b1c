"""The client's side of one connection to a backend: one response at a time, to a sink (contract B1, B4, B5, C3).

States: IDLE (in the pool, or acquired and not used yet), ACTIVE (a response is due or under way), ENDING (our side
is closed; what comes is discarded, but the end of the message and the peer's close are noticed), CLOSED.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, cast

import httptools

from inferencemesh.runtime.http1.lost import UpstreamLost
from inferencemesh.runtime.http1.response import HEAD_BYTES, BadResponseError, ResponseReader, ResponseSink

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.client_connection import ClientConnection
    from inferencemesh.runtime.http1.pool import ConnectionPool

IDLE, ACTIVE, ENDING, CLOSED = range(4)

UNOWNED_S = 10.0  # how long a peer may keep a connection that we have ended and nobody watches
_RESET = (
    ConnectionResetError,
    ConnectionAbortedError,
)  # EPIPE may be due to our own FIN, a timeout to anything


class ClientProtocol(ResponseReader, asyncio.Protocol):
    """See the module. Owned by the pool; users hold a `ClientConnection`."""

    __slots__ = (
        "_deaf",
        "_ended_by_us",
        "_loop",
        "_on_closed",
        "_on_end",
        "_paused",
        "_pool",
        "_sent_bytes",
        "_sock",
        "_state",
        "_transport",
        "abandoned",
        "bytes_in",
        "ends_at",
        "idle_at",
        "peeked_at",
        "peer_closed",
        "reused",
        "user",
    )

    def __init__(self, pool: ConnectionPool, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._sock: socket.socket | None = None
        self._state = IDLE
        self._on_closed: list[Callable[[], None]] = []
        self._on_end: Callable[[], None] | None = None
        self._paused = False
        self._deaf = False  # after an error: what comes means nothing any more
        self._ended_by_us = False
        self._sent_bytes = 0  # of the present request, written to the transport
        self.user: ClientConnection | None = None  # the present owner's handle
        self.abandoned = False  # nobody waits for the connection any more
        self.peer_closed = False  # the peer's own FIN or RST was seen
        self.reused = False
        self.bytes_in = 0  # of the present use
        self.idle_at = 0.0
        self.peeked_at = -1.0  # when the socket was last looked at for the peer's FIN
        self.ends_at = inf  # ENDING and nobody's: when the pool cuts it

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent or received."""
        return self._state == CLOSED

    @property
    def connected(self) -> bool:
        """Whether the transport has come up."""
        return self._transport is not None

    def now(self) -> float:
        """The loop's time."""
        return self._loop.time()

    # -- transport callbacks --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is up; nobody may want it any more."""
        self._transport = cast("asyncio.Transport", transport)
        if self.abandoned:
            self.abort()

    def adopt_socket(self, sock: socket.socket) -> None:
        """The socket under the transport, to look into it without taking anything out."""
        self._sock = sock

    def data_received(self, data: bytes) -> None:
        """Bytes of the backend's: of the response due, or none that we asked for."""
        n = len(data)
        self.bytes_in += n
        state = self._state
        if state != ACTIVE and (state != ENDING or self._deaf):
            if state == IDLE:
                self.abort()  # not asked for: whatever it is, the connection is not to be used
            return
        self._silent += n
        self._begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._parse_failed(error)
                return
            self._keep = False
        if self._complete:
            self._message_ended()
            return
        if self._silent > HEAD_BYTES:
            self._bad("the backend sent a head, chunk extensions or trailers beyond all bounds")
            return
        sink = self._sink
        if sink is not None and self._head_done:
            try:
                sink.on_read()
            except BaseException as error:
                self._sink_failed(error)

    def eof_received(self) -> bool | None:
        """The peer has closed its side: the end of the body where nothing else delimits it (contract C3)."""
        self.peer_closed = True
        if self._state == ACTIVE:
            if self._head_done and not self._delimited:
                self._message_ended()
            else:
                transport = self._transport
                unwritten = transport is not None and transport.get_write_buffer_size() >= self._sent_bytes
                message = "the backend closed the connection before its answer was complete"
                self._end_by_peer(message, clean=True, unread=self.reused and not self._begun and unwritten)
        self.abort()
        self._fire_closed()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the transport, whoever made it."""
        if isinstance(exc, _RESET) or (exc is None and not self._ended_by_us):
            self.peer_closed = True
        active = self._state == ACTIVE
        self._state = CLOSED
        self._sock = None
        self._pool.forget(self)
        if active:
            unread = self.reused and not self._begun and not self._sent_bytes
            message = f"the connection to the backend was lost: {exc or 'closed'}"
            self._end_by_peer(message, clean=False, unread=unread)
        if self.peer_closed:
            self._fire_closed()
        self._on_closed.clear()

    # -- for the handle --

    def request(self, data: bytes | Sequence[bytes], sink: ResponseSink) -> None:
        """Send one request, head and body; its response goes to `sink`."""
        if self._sink is not None or self._state in (ACTIVE, ENDING):
            raise RuntimeError("a response is under way on this connection")
        self._reset()
        self._sent_bytes = 0
        self._sink = sink
        transport = self._transport
        if self._state == CLOSED or transport is None or (self.reused and self._gone_meanwhile()):
            # Nothing was written. Told in a step of its own, so that the sink is never called within `request`.
            self._state = ACTIVE
            self._loop.call_soon(self._found_dead)
            return
        self._state = ACTIVE
        try:
            if isinstance(data, bytes):
                self._sent_bytes = len(data)
                transport.write(data)
            else:
                self._sent_bytes = sum(map(len, data))
                if len(data) == 1:
                    transport.write(data[0])
                else:
                    transport.writelines(data)
        except RuntimeError:  # uvloop: the handle is closed, and connection_lost on its way
            self._loop.call_soon(self._found_dead)

    def _gone_meanwhile(self) -> bool:
        now = self._loop.time()
        return self.peeked_at != now and not self.alive(now)

    def _found_dead(self) -> None:
        if self._state == ACTIVE:
            self.peer_closed = True
            self._end_by_peer("the backend had closed the idle connection", clean=False, unread=self.reused)
            self.abort()

    def alive(self, now: float) -> bool:
        """Whether the connection can be used, looking for a FIN, a RST or bytes that the loop has not seen yet."""
        transport, sock = self._transport, self._sock
        if self._state != IDLE or transport is None or sock is None or transport.is_closing():
            return False
        self.peeked_at = now
        try:
            sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def abandon(self) -> None:
        """Nobody waits for the connection any more: end it, now or when it comes up."""
        self.abandoned = True
        self.abort()

    def release(self) -> None:
        """Back to the pool if no request was made; else the connection ends."""
        if self._state == IDLE:
            self._pool.give_back(self)
        else:
            self.abort()

    def pause(self) -> None:
        """Stop reading; idempotent."""
        transport = self._transport
        if not self._paused and self._state == ACTIVE and transport is not None:
            self._paused = True
            transport.pause_reading()

    def resume(self) -> None:
        """Read again; idempotent."""
        transport = self._transport
        if self._paused:
            self._paused = False
            if self._state != CLOSED and transport is not None:
                transport.resume_reading()

    def half_close(self, on_closed: Callable[[], None] | None, on_end: Callable[[], None] | None) -> None:
        """See `ClientConnection.half_close`."""
        self._sink = None
        if on_closed is not None:
            self.add_close_callback(on_closed)
        if self._state == CLOSED:
            return
        if on_closed is not None or on_end is not None:
            self._on_end = on_end
            self.ends_at = inf
        elif self._state != ENDING:
            self.ends_at = self._loop.time() + UNOWNED_S
        self._close_our_side()

    def _close_our_side(self) -> None:
        if self._state == ENDING:
            return
        self._state = ENDING
        self.resume()
        transport, sock = self._transport, self._sock
        try:
            if transport is not None and transport.can_write_eof():
                transport.write_eof()
            elif sock is not None:
                # TLS in asyncio has no half-close, and its close stops reading. A FIN below it says the same to the
                # peer, and leaves us to see the end of the message and the peer's own close.
                sock.shutdown(socket.SHUT_WR)
        except (RuntimeError, OSError):
            self.abort()

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """See `ClientConnection.add_close_callback`."""
        if self.peer_closed:
            self._call(callback)
        elif self._state != CLOSED or self._transport is not None:
            self._on_closed.append(callback)

    def abort(self) -> None:
        """End the connection at once; the sink hears nothing of it. Idempotent."""
        self._sink = None
        self._on_end = None
        self._ended_by_us = True
        self._state = CLOSED
        self._pool.unusable(self)
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now: float) -> None:
        """Cut a connection that we have ended, that nobody watches, and that the peer keeps."""
        if self._state == ENDING and self.ends_at <= now:
            self.abort()

    def expel(self, why: str) -> None:
        """The pool ends: so does the response under way."""
        sink, active = self._sink, self._state == ACTIVE
        self.abort()
        if active and sink is not None:
            self._tell_lost(sink, UpstreamLost("upstream_reset", why, seen_bytes=self.bytes_in))

    # -- how a response ends --

    def _message_ended(self) -> None:
        """The whole message is here. The connection is handed on before the sink is told."""
        sink, self._sink = self._sink, None
        transport = self._transport
        if self._state == ENDING:
            on_end, self._on_end = self._on_end, None
            self.abort()
            if on_end is not None:
                self._call(on_end)
            return
        if self._paused:
            self.resume()
        # A backend that answers before it has read the whole request leaves the connection in the middle of it.
        if (
            self._keep
            and not self._garbage
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        ):
            self._state = IDLE
            self._headers = []
            self._pool.give_back(self)
        else:
            self.abort()
        if sink is not None:
            try:
                sink.on_end()
            except BaseException as error:
                self._tell_lost(sink, self._internal(error))
                _exit(error)

    def _end_by_peer(self, message: str, *, clean: bool, unread: bool = False) -> None:
        sink, self._sink = self._sink, None
        self._state = CLOSED
        if sink is not None:
            lost = UpstreamLost(
                "upstream_reset",
                message,
                clean_eof=clean,
                peer_closed=self.peer_closed,
                seen_bytes=self.bytes_in,
                unread=unread,
            )
            self._tell_lost(sink, lost)

    def _parse_failed(self, error: Exception) -> None:
        failure = self._failure
        if failure is not None:
            self._sink_failed(failure)
        else:
            own = error.__context__
            self._bad(
                f"the backend's answer cannot be used: {own if isinstance(own, BadResponseError) else error}"
            )

    def _bad(self, message: str) -> None:
        lost = UpstreamLost("upstream_protocol", message, seen_bytes=self.bytes_in)
        self._end_by_us(lost)

    def _sink_failed(self, error: BaseException) -> None:
        self._end_by_us(self._internal(error))
        _exit(error)

    def _internal(self, error: BaseException) -> UpstreamLost:
        message = f"the gateway failed on the backend's answer: {type(error).__name__}"
        return UpstreamLost("internal", message, seen_bytes=self.bytes_in, cause=error)

    def _end_by_us(self, lost: UpstreamLost) -> None:
        """End the response from our side. The peer's close stays visible to whoever asks for it (contract B5)."""
        sink, self._sink = self._sink, None
        self._deaf = True
        if self._state == ACTIVE:
            self.ends_at = self._loop.time() + UNOWNED_S
            self._close_our_side()
        elif self._state == ENDING:
            self._on_end = None  # the end of the message can no longer be told
        if sink is not None:
            self._tell_lost(sink, lost)

    def _tell_lost(self, sink: ResponseSink, lost: UpstreamLost) -> None:
        try:
            sink.on_lost(lost)
        except BaseException as error:
            self._report("on_lost of a sink", error)

    def _fire_closed(self) -> None:
        callbacks, self._on_closed = self._on_closed, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException as error:
            self._report("a close callback", error)

    def _report(self, where: str, error: BaseException) -> None:
        _exit(error)
        self._loop.call_exception_handler(
            {"message": f"{where} raised", "exception": error, "protocol": self}
        )


def _exit(error: BaseException) -> None:
    """An order to exit goes on its way, after the cleanup."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
