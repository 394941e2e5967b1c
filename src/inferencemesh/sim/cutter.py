"""Breaks a connection on purpose: by a TCP reset, or by a plain close that comes too early."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.connection import ServerConnection
    from inferencemesh.runtime.http1.responder import Responder

_POLL_S = 0.001


class Cutter:
    """What a job can do to the connection that its response goes out on."""

    __slots__ = ("_connection", "_loop", "_responder")

    def __init__(
        self, responder: Responder, connection: ServerConnection, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._responder = responder
        self._connection = connection
        self._loop = loop

    def now(self, *, reset: bool) -> None:
        """Break it at once. Does nothing once the response has been handed over or the caller is gone."""
        if self._connection.owns(self._responder):
            if reset:
                self._connection.cut(reset=True)
            else:
                self._responder.cut()

    def after_delivery(self, *, reset: bool) -> None:
        """Break it once the peer's kernel has all that was written.

        A reset throws away what is still on its way, and the script says what shall have come before it.
        """
        if not self._connection.owns(self._responder):
            return
        if self._responder.unsent_bytes() or self._unacknowledged():
            self._loop.call_later(_POLL_S, lambda: self.after_delivery(reset=reset))
        else:
            self.now(reset=reset)

    def _unacknowledged(self) -> int:
        """Bytes in the kernel's send queue, where the system tells (Linux: tcp(7), SIOCOUTQ)."""
        sock = self._connection._transport.get_extra_info("socket")
        if sock is None:
            return 0
        count = bytearray(4)
        try:
            fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
        except OSError:
            return 0
        return int.from_bytes(count, sys.byteorder)
