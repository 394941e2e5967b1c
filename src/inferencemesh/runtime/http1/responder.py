"""One response on one connection: framing, back-pressure, departure (contract B1, B4, A11)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from inferencemesh.runtime.http1.heads import CHUNKED, CLOSE, KEEP_ALIVE, bodiless, response_head
from inferencemesh.runtime.http1.message import Headers, IncomingRequest

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.connection import ServerConnection

# How the body is delimited, which is also how far the response has come.
_NEW: Final = 0
_CHUNKED: Final = 1
_LENGTH: Final = 2
_UNTIL_CLOSE: Final = 3
_NO_BODY: Final = 4
_DONE: Final = 5
_GONE: Final = 6

_LAST_CHUNK: Final = b"0\r\n\r\n"

HIGH_WATER_BYTES = 64 * 1024


class Responder:
    """One response. Made by the server for each request; not usable for a second response.

    Nothing is written after the caller has departed or the response was cut, and no method raises for it: output
    is dropped silently, since the app learns of it by `on_departure`. `bytes_out` counts body bytes taken over
    for sending (without head and framing).
    """

    __slots__ = (
        "_conn",
        "_left",
        "_mode",
        "_on_departure",
        "_on_pause",
        "_on_resume",
        "_request",
        "_waiters",
        "bytes_out",
        "close",
        "departed",
        "departure",
        "finished",
        "paused",
        "started",
        "until_close",
    )

    def __init__(self, conn: ServerConnection, request: IncomingRequest) -> None:
        self._conn = conn
        self._request = request
        self._mode: int = _NEW
        self._left = 0
        self._on_departure: Callable[[], None] | None = None
        self._on_pause: Callable[[], None] | None = None
        self._on_resume: Callable[[], None] | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self.bytes_out = 0
        self.until_close = False  # only the end of the connection says where the body ends
        self.close = False  # the connection ends with this response
        self.started = False  # the head was written
        self.finished = False  # the last byte was written
        self.departed = False  # the caller left, or was cut off by the server, before it had taken everything
        self.departure = ""  # client_gone | send_timeout | flood | shutdown
        self.paused = False  # more than 64 KiB wait for the caller: stop producing until on_resume

    @property
    def peer(self) -> str:
        """The caller's address."""
        return self._request.peer

    def listen(
        self,
        *,
        on_departure: Callable[[], None],
        on_pause: Callable[[], None] | None = None,
        on_resume: Callable[[], None] | None = None,
    ) -> None:
        """Ask to be told, synchronously: of departure (once, at once if it has happened already) and back-pressure."""
        self._on_departure = on_departure
        self._on_pause = on_pause
        self._on_resume = on_resume
        if self.departed:
            self._on_departure = None
            on_departure()

    def send(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole response in one write. Raises ValueError for a field that would split the response."""
        if self._mode != _NEW:
            self._misused("send")
            return
        close = self._closes()
        if status == 204:
            framing = b""
        else:
            framing = b"content-length: %d\r\n" % len(body)
        head = response_head(status, headers, framing + self._connection_field(close))
        if self._request.method == "HEAD" or bodiless(status):
            body = b""
        self.close = close
        self.started = True
        self.bytes_out = len(body)
        self._finish(head + body if body else head)

    def start(
        self, status: int, headers: Headers, *, length: int | None, first: bytes = b"", whole: bool = False
    ) -> None:
        """The head and the first body bytes in one write; without `length` the body is chunked.

        A HTTP/1.0 caller gets it delimited by the close instead. With `whole` the first bytes are the last ones, too,
        and the end of the body is in the same write. Raises ValueError as `send` does.
        """
        if self._mode != _NEW:
            self._misused("start")
            return
        if length is not None and len(first) > length:
            raise ValueError(f"{len(first)} body bytes where {length} are announced.")
        close = self._closes()
        if self._request.method == "HEAD" or bodiless(status):
            mode, framing = _NO_BODY, b"" if length is None else b"content-length: %d\r\n" % length
        elif length is not None:
            mode, framing = _LENGTH, b"content-length: %d\r\n" % length
            self._left = length
        elif self._request.http10:
            mode, framing, close = _UNTIL_CLOSE, b"", True
            self.until_close = True
        else:
            mode, framing = _CHUNKED, CHUNKED
        head = response_head(status, headers, framing + self._connection_field(close))
        self.close = close
        self._mode = mode
        self.started = True
        data = head + self._framed(first) if first else head
        if not whole:
            self._emit(data)
        elif mode == _LENGTH and self._left:
            self._emit(data)
            self.cut()  # the caller must not wait for the rest
        else:
            self._finish(data + _LAST_CHUNK if mode == _CHUNKED else data)

    def write(self, data: bytes) -> None:
        """Body bytes, framed, in one write."""
        if not data:
            return  # an empty chunk would be the last one
        if self._mode == _CHUNKED:
            n = len(data)
            self.bytes_out += n
            data = b"%x\r\n%b\r\n" % (n, data)
        elif self._mode >= _DONE or self._mode == _NEW:
            self._misused("write")
            return
        else:
            data = self._framed(data)
        self._emit(data)

    def finish(self, last: bytes = b"") -> None:
        """The last bytes and the end of the body in one write; the connection is then kept alive or closed.

        With an announced length that was not reached the connection is cut: the caller must not wait for the rest.
        """
        mode = self._mode
        if mode == _CHUNKED:
            if last:
                n = len(last)
                self.bytes_out += n
                self._finish(b"%x\r\n%b\r\n0\r\n\r\n" % (n, last))
            else:
                self._finish(_LAST_CHUNK)
        elif mode >= _DONE or mode == _NEW:
            self._misused("finish")
        else:
            data = self._framed(last) if last else b""
            if self._left and mode == _LENGTH:
                self._emit(data)
                self.cut()
            else:
                self._finish(data)

    def cut(self) -> None:
        """End the connection without the last chunk, so that the caller sees the response as broken (contract C2).

        Not a departure: `on_departure` is not called. Does nothing once everything was handed over.
        """
        conn = self._conn
        if self._mode == _GONE or not conn.owns(self):
            return
        self._mode = _GONE
        self.forget()
        conn.cut(reset=self.until_close)
        self._wake(ConnectionResetError("the response was cut"))

    def unsent_bytes(self) -> int:
        """Bytes of this response that the kernel has not taken yet."""
        return self._conn.unsent_bytes() if self._mode != _GONE and self._conn.owns(self) else 0

    async def flushed(self) -> None:
        """Return once the kernel has taken everything written so far; raises ConnectionError on departure."""
        if self.departed or self._mode == _GONE:
            raise ConnectionResetError(f"the caller is gone ({self.departure or 'cut'})")
        if not self._conn.owns(self) or not self._conn.write_paused:
            return
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        await waiter

    # -- inside --

    def _closes(self) -> bool:
        return not self._request.keep_alive or self._conn.server_closing()

    def _connection_field(self, close: bool) -> bytes:
        if close:
            return CLOSE
        return KEEP_ALIVE if self._request.http10 else b""

    def _framed(self, data: bytes) -> bytes:
        """`data` as this response's framing wants it."""
        mode = self._mode
        if mode == _NO_BODY:
            return b""
        n = len(data)
        if mode == _CHUNKED:
            self.bytes_out += n
            return b"%x\r\n%b\r\n" % (n, data)
        if mode == _LENGTH:
            if n > self._left:
                raise ValueError(f"{n} body bytes where {self._left} of the announced length are left.")
            self._left -= n
        self.bytes_out += n
        return data

    def _emit(self, data: bytes) -> None:
        conn = self._conn
        conn.write(data)
        if conn.write_paused:
            conn.pressed(len(data))
            if not self.paused and conn.unsent_bytes() > HIGH_WATER_BYTES:
                self.paused = True
                if self._on_pause is not None:
                    conn.call(self._on_pause)

    def _finish(self, data: bytes) -> None:
        self._mode = _DONE
        self.finished = True
        conn = self._conn
        if data:
            conn.write(data)
            if conn.write_paused:
                conn.pressed(len(data))
        conn.response_done(self)

    def _misused(self, what: str) -> None:
        if self._mode == _GONE:
            return
        state = (
            "finished" if self._mode == _DONE else "not started" if self._mode == _NEW else "started already"
        )
        raise RuntimeError(f"{what}() on a response that is {state}")

    def forget(self) -> None:
        """Called by the connection: the caller has taken everything. What listened is let go, and no cycle is left."""
        self._on_departure = self._on_pause = self._on_resume = None

    def drained(self) -> None:
        """Called by the connection: the kernel has taken everything."""
        if self._waiters:
            self._wake(None)
        if self.paused:
            self.paused = False
            if self._on_resume is not None and not self.finished:
                self._conn.call(self._on_resume)

    def depart(self, reason: str) -> None:
        """Called by the connection, once: the caller is gone, `reason` says how."""
        self._mode = _GONE
        self.departed = True
        self.departure = reason
        callback = self._on_departure
        self.forget()
        self._wake(ConnectionResetError(f"the caller is gone ({reason})"))
        if callback is not None:
            self._conn.call(callback)

    def _wake(self, error: Exception | None) -> None:
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
