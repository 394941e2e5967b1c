"""The client's side of one connection to a backend: one response at a time, to a sink (contract B1, B4, B5, C3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import httptools

from inferencemesh.runtime.http1.client_channel import (
    ACTIVE,
    CLOSED,
    ENDING,
    IDLE,
    UNOWNED_S,
    ClientChannel,
    pass_exit,
)
from inferencemesh.runtime.http1.lost import UpstreamLost
from inferencemesh.runtime.http1.response import HEAD_BYTES, BadResponseError, ResponseSink

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.pool import ConnectionPool

# What says that the peer ended the connection. EPIPE may be due to our own FIN, a timeout to anything.
_RESET = (ConnectionResetError, ConnectionAbortedError)


EARLY_S = 0.5  # a server that keeps connections at all keeps them for longer


class ClientProtocol(ClientChannel):
    """See the module. Owned by the pool; users hold a `ClientConnection`."""

    __slots__ = ("_pool",)

    def __init__(self, pool: ConnectionPool, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._pool = pool

    # -- transport callbacks --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is up; nobody may want it any more."""
        self._transport = cast("asyncio.Transport", transport)
        if self.abandoned:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes of the backend's: of the response due, or none that we asked for."""
        n = len(data)
        if not self.bytes_in:
            self._is_http11 = data[:9] == b"HTTP/1.1 "
        self.bytes_in += n
        state = self._state
        if state != ACTIVE and (state != ENDING or self._deaf):
            if state == IDLE:
                self.abort()  # not asked for: whatever it is, the connection is not to be used
            return
        self._silent += n
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as fault:
            if not self._complete:
                self._parse_failed(fault)
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
        if self._state == IDLE and self.user is None and self._loop.time() - self.idle_at < EARLY_S:
            self._pool.distrust(self)
        if self._state == ACTIVE:
            if self._head_done and not self._delimited:
                self._keep = False
                self._message_ended()
            else:
                message = "the backend closed the connection before its answer was complete"
                self._end_by_peer(message, clean=True, unread=self._unwritten())
        self.abort()
        self._fire_closed()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the transport, whoever made it."""
        if isinstance(exc, _RESET) or (exc is None and not self._ended_by_us):
            self.peer_closed = True
        active = self._state == ACTIVE
        self._state = CLOSED
        self._sock = self._look = None
        self._pool.forget(self)
        if active:
            message = f"the connection to the backend was lost: {exc or 'closed'}"
            self._end_by_peer(message, clean=False, unread=self.reused and not self._sent_bytes)
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
        except Exception:
            if (
                transport.is_closing()
            ):  # uvloop: a closed handle takes nothing, and connection_lost is on its way
                self._sent_bytes = 0
            self._loop.call_soon(self._found_dead)

    def _gone_meanwhile(self) -> bool:
        now = self._loop.time()
        return self.peeked_at != now and not self.alive(now)

    def _found_dead(self) -> None:
        if self._state == ACTIVE:
            self.peer_closed = self.peer_closed or not self._ended_by_us
            unread = self.reused and not self._sent_bytes
            self._end_by_peer("the backend had closed the idle connection", clean=False, unread=unread)
            self.abort()

    def _unwritten(self) -> bool:
        """Whether the kernel has had no byte of a request on a reused connection; see `UpstreamLost.unread`."""
        transport = self._transport
        if not self.reused or self.bytes_in or transport is None:
            return False
        # With TLS the buffer's size is of ciphertext, of which a part may be gone and the rest still be larger.
        return not self._sent_bytes or (
            transport.can_write_eof() and transport.get_write_buffer_size() >= self._sent_bytes
        )

    def alive(self, now: float) -> bool:
        """Whether the connection can be used, looking for a FIN, a RST or bytes that the loop has not seen yet."""
        transport, look = self._transport, self._look
        if self._state != IDLE or transport is None or look is None or transport.is_closing():
            return False
        self.peeked_at = now
        return look()

    def release(self) -> None:
        """Back to the pool if no request was made; else the connection ends."""
        if self._state == IDLE:
            self._on_closed.clear()
            self._pool.give_back(self)
        else:
            self.abort()

    def _retire(self) -> None:
        self._pool.unusable(self)

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
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        ):
            self._state = IDLE
            self._interim = 0
            if self._on_closed:
                self._on_closed.clear()
            self._pool.give_back(self)
        else:
            self.abort()
        if sink is not None:
            try:
                sink.on_end()
            except BaseException as error:
                self._tell_lost(sink, self._internal(error))
                pass_exit(error)

    def _end_by_peer(self, message: str, *, clean: bool, unread: bool = False) -> None:
        sink, self._sink = self._sink, None
        self._state = CLOSED
        if self.reused and not self.bytes_in:
            self._pool.distrust(self)
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
        pass_exit(error)

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
