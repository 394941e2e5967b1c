"""The client's side of one connection, without what it reads: its states, back-pressure, and how we end it.

States: IDLE (in the pool, or acquired and not used yet), ACTIVE (a response is due or under way), ENDING (our side
is closed; what comes is discarded, but the end of the message and the peer's close are noticed), CLOSED.

What the peer does is kept apart from what we do (contract B5): `peer_closed` is only set by the peer's own FIN or RST,
never by an abort of ours or by a network that went silent.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from inferencemesh.runtime.http1.response import ResponseReader
from inferencemesh.runtime.http1.sockets import looker

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.client_connection import ClientConnection

IDLE: Final = 0
ACTIVE: Final = 1
ENDING: Final = 2
CLOSED: Final = 3

UNOWNED_S = 10.0  # how long a peer may keep a connection that we have ended and nobody watches


class ClientChannel(ResponseReader, ABC):
    """What can be done with a connection to a backend whatever it carries.

    An `asyncio.Protocol` in what it answers to and not by descent; see `channel.Channel`.
    """

    __slots__ = (
        "_deaf",
        "_ended_by_us",
        "_look",
        "_loop",
        "_on_closed",
        "_on_end",
        "_paused",
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

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._sock: socket.socket | None = None
        self._look: Callable[[], bool] | None = None  # whether nothing lies in it
        self._state: int = IDLE
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

    def adopt_socket(self, sock: socket.socket) -> None:
        """The socket under the transport, to look into it without taking anything out."""
        self._sock = sock
        self._look = looker(sock)

    def abandon(self) -> None:
        """Nobody waits for the connection any more: end it, now or when it comes up."""
        self.abandoned = True
        self.abort()

    def pause_writing(self) -> None:
        """The kernel is full: one request at a time is written here, and its body is bounded."""

    def resume_writing(self) -> None:
        """The kernel has taken everything."""

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
        if (
            self._state == ACTIVE and not self._sent_bytes
        ):  # found dead: the peer has not heard of the request
            self.peer_closed = True
            self.abort()
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
        self._retire()
        if self._transport is not None:
            self._transport.abort()

    @abstractmethod
    def _retire(self) -> None:
        """See to it that the pool does not hand the connection out again."""

    def sweep(self, now: float) -> None:
        """Cut a connection that we have ended, that nobody watches, and that the peer keeps."""
        if self._state == ENDING and self.ends_at <= now:
            self.abort()

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
        pass_exit(error)
        self._loop.call_exception_handler(
            {"message": f"{where} raised", "exception": error, "protocol": self}
        )


def pass_exit(error: BaseException) -> None:
    """An order to exit goes on its way, after the cleanup."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
