"""The HTTP/1.1 server: listening, limits over all connections, the sweep, and shutdown (contract A11, B7, G2)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from ssl import SSLContext
from typing import Any, cast

from inferencemesh.runtime.http1.connection import ServerConnection
from inferencemesh.runtime.http1.limits import ByteBudget, ServerLimits
from inferencemesh.runtime.http1.message import Answer, App, BodyPlan, IncomingRequest
from inferencemesh.runtime.http1.responder import Responder
from inferencemesh.runtime.http1.sockets import BACKLOG, listening_socket

__all__ = [
    "Answer",
    "App",
    "BodyPlan",
    "ByteBudget",
    "HttpServer",
    "IncomingRequest",
    "Responder",
    "ServerLimits",
]

# Connections above the limit that are being told so; beyond them a connection is closed without a word.
_TURNED_AWAY = 128


class HttpServer:
    """One listener and its connections.

    Nothing here runs by itself: the owner calls `sweep` from one periodic timer, and every limit of time is as fine
    as that timer's period.
    """

    def __init__(
        self, app: App, limits: ServerLimits, budget: ByteBudget, ssl: SSLContext | None = None
    ) -> None:
        self.app = app
        self.limits = limits
        self.budget = budget
        self.closing = False  # responses say `connection: close`
        self.port = 0
        self.turned_away = 0  # connections refused for a limit, so far
        self._ssl = ssl
        self._connections: set[ServerConnection] = set()
        self._peers: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []
        self._listening = False
        self._empty: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connections(self) -> int:
        """Open connections, those being turned away or lingering included."""
        return len(self._connections)

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets."""
        return [sock for server in self._servers for sock in server.sockets]

    async def start(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        sockets: Sequence[socket.socket] | None = None,
        reuse_port: bool = False,
    ) -> None:
        """Listen on every address of `host`, or on `sockets` (bound already). Raises OSError, e.g. a taken port."""
        loop = self._loop = asyncio.get_running_loop()
        self._empty = asyncio.Event()
        self._empty.set()
        bound = list(sockets) if sockets is not None else await _bind(loop, host, port, reuse_port=reuse_port)
        try:
            for sock in bound:
                server = await loop.create_server(
                    cast("Any", self._protocol),
                    sock=sock,
                    backlog=BACKLOG,
                    ssl=self._ssl,
                    ssl_handshake_timeout=self.limits.header_timeout_s if self._ssl is not None else None,
                )
                self._servers.append(server)
        except BaseException:
            for sock in bound:
                sock.close()
            self.stop_accepting()
            raise
        self._listening = True
        self.port = bound[0].getsockname()[1]

    def _protocol(self) -> ServerConnection:
        loop = self._loop
        assert loop is not None  # noqa: S101 - set by start
        return ServerConnection(self, loop)

    # -- for connections --

    def admit(self, conn: ServerConnection) -> tuple[str, str] | None:
        """Count a new connection in. For one too many: why (code and message); no code: close without a word."""
        total = len(self._connections)
        self._connections.add(conn)
        if self._empty is not None:
            self._empty.clear()
        of_peer = self._peers.get(conn.peer, 0)
        self._peers[conn.peer] = of_peer + 1
        limits = self.limits
        if not self._listening:
            return "", ""  # was in the backlog when the listener closed
        if total >= limits.max_connections:
            self.turned_away += 1
            if total >= limits.max_connections + _TURNED_AWAY:
                return "", ""
            return "queue_full", f"More than {limits.max_connections} connections are open."
        if limits.per_peer is not None and of_peer >= limits.per_peer:
            self.turned_away += 1
            if of_peer >= limits.per_peer + _TURNED_AWAY:
                return "", ""
            return (
                "rate_limit_exceeded",
                f"More than {limits.per_peer} connections from one address are open.",
            )
        return None

    def forget(self, conn: ServerConnection) -> None:
        """Count a connection out."""
        self._connections.discard(conn)
        left = self._peers.get(conn.peer, 0) - 1
        if left > 0:
            self._peers[conn.peer] = left
        else:
            self._peers.pop(conn.peer, None)
        if not self._connections and self._empty is not None:
            self._empty.set()

    # -- for the owner --

    def sweep(self, now: float) -> None:
        """Act on every limit of time that has passed; `now` is the loop's time. Call it about every 0.25 to 1 s."""
        for conn in [conn for conn in self._connections if conn.due_at <= now]:
            try:
                conn.due(now)
            except Exception as error:  # one connection's failure is not the others'
                conn.report("a timeout", error)

    def begin_shutdown(self) -> None:
        """From now on responses say `connection: close`. The listener stays open (contract B7)."""
        self.closing = True

    def stop_accepting(self) -> None:
        """Close the listener and the connections on which nothing of a request has arrived. Idempotent."""
        self.closing = True
        self._listening = False
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for conn in list(self._connections):
            conn.close_idle()

    async def close(self, grace_s: float) -> None:
        """Stop accepting, wait up to `grace_s` seconds for the connections to end, then cut what is left.

        A request that is cut departs with reason `shutdown`.
        """
        self.stop_accepting()
        empty = self._empty
        if empty is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await empty.wait()
        for conn in list(self._connections):
            conn.expel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # abort is a matter of loop iterations
                await empty.wait()


async def _bind(
    loop: asyncio.AbstractEventLoop, host: str | None, port: int, *, reuse_port: bool
) -> list[socket.socket]:
    infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(infos):
            where = (address[0], port, *address[2:])
            bound.append(listening_socket(family, where, reuse_port=reuse_port))
            port = port or bound[0].getsockname()[1]  # every address of the host on the same port
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound
