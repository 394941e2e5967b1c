"""Connections to one backend, kept between requests. Never a queue: whoever asks gets one, or an error.

How many are wanted at once is decided by slots (contract A1), not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl as tls
from collections.abc import MutableSet
from typing import Any, cast
from urllib.parse import urlsplit

from inferencemesh.runtime.http1.client_connection import ClientConnection
from inferencemesh.runtime.http1.client_protocol import EARLY_S, ClientProtocol
from inferencemesh.runtime.http1.lost import ConnectError
from inferencemesh.runtime.http1.sockets import connected_socket

WARY_S = 60.0


class ConnectionPool:
    """Idle connections, the last used first, so that a lull lets the others grow old and be closed.

    `idle_s` is shorter than what common model servers keep an idle connection (uvicorn: 5 s): a connection that the
    server is about to close is not used, and each is looked at for an early FIN before it is.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        ssl: tls.SSLContext | None = None,
        max_idle: int = 256,
        idle_s: float = 4.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http(s) URL: {url!r}")
        secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if secure else 80)
        self.opened = 0  # connections that came up, so far
        self.connecting = 0
        self._ssl = (ssl or tls.create_default_context()) if secure else None
        self._connect_timeout_s = connect_timeout_s
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._idle: list[ClientProtocol] = []  # the last used at the end
        self._all: MutableSet[ClientProtocol] = set()
        self._closed = False
        self._wary_until = 0.0  # until then connections are used once
        self._emptied: asyncio.Future[None] | None = None

    @property
    def idle(self) -> int:
        """Connections that wait for a use."""
        return len(self._idle)

    @property
    def in_use(self) -> int:
        """Open connections that are somebody's, those that we have ended and the peer has not included."""
        return len(self._all) - len(self._idle)

    async def acquire(self, timeout_s: float | None = None) -> ClientConnection:
        """An idle connection that is alive, or a new one. Cancelling leaves nothing open.

        `timeout_s` shortens the pool's own limit for connecting. Raises `ConnectError`.
        """
        if self._closed:
            raise ConnectError(f"the pool of {self.host}:{self.port} is closed")
        conn = self.take()
        if conn is not None:
            return conn
        limit = self._connect_timeout_s
        return await self._connect(limit if timeout_s is None else min(limit, timeout_s))

    def take(self) -> ClientConnection | None:
        """An idle connection that is alive, or None: what `acquire` does when it need not wait."""
        idle = self._idle
        if not idle:
            return None
        now = idle[-1].now()
        while idle:
            protocol = idle.pop()
            if now - protocol.idle_at < self._idle_s and protocol.alive(now):
                return self._handle(protocol, reused=True)
            if now - protocol.idle_at < EARLY_S:
                self.distrust(protocol)
            protocol.abort()
        return None

    def _handle(self, protocol: ClientProtocol, *, reused: bool) -> ClientConnection:
        handle = ClientConnection(protocol, reused=reused)
        protocol.user = handle
        protocol.reused = reused
        protocol.bytes_in = 0
        return handle

    async def _connect(self, timeout_s: float) -> ClientConnection:
        loop = asyncio.get_running_loop()
        protocol = ClientProtocol(self, loop)
        sock: socket.socket | None = None
        self.connecting += 1
        try:
            async with asyncio.timeout(timeout_s):
                sock = await connected_socket(self.host, self.port, loop)
                protocol.adopt_socket(sock)
                await loop.create_connection(
                    cast("Any", lambda: protocol),
                    sock=sock,
                    ssl=self._ssl,
                    server_hostname=self.host if self._ssl is not None else None,
                )
            if self._closed:
                raise ConnectError(f"the pool of {self.host}:{self.port} is closed")
        except BaseException as error:
            protocol.abandon()
            if sock is not None and not protocol.connected:
                sock.close()
            if isinstance(error, TimeoutError) and not isinstance(error, ConnectError):
                message = f"no connection to {self.host}:{self.port} within {timeout_s:g} s"
                raise ConnectError(message, timed_out=True) from error
            if isinstance(error, OSError) and not isinstance(error, ConnectError):
                raise ConnectError(f"no connection to {self.host}:{self.port}: {_reason(error)}") from error
            raise
        finally:
            self.connecting -= 1
        self.opened += 1
        if not protocol.closed:
            self._all.add(protocol)
        return self._handle(protocol, reused=False)

    # -- for connections --

    def give_back(self, protocol: ClientProtocol) -> None:
        """A connection whose response is complete."""
        user, protocol.user = protocol.user, None
        if user is not None:
            user.detach(protocol.bytes_in)
        now = protocol.idle_at = protocol.now()
        if self._closed or len(self._idle) >= self._max_idle or now < self._wary_until:
            protocol.abort()
            return
        self._idle.append(protocol)

    def distrust(self, protocol: ClientProtocol) -> None:
        """The server has closed a kept connection that was hardly idle, or closed one while a request was sent on it.

        Each such race costs a request, which may not be sent again; so for a while connections are used once.
        """
        now = protocol.now()
        if protocol.reused or now - protocol.idle_at < EARLY_S:
            self._wary_until = now + WARY_S
            for idle in list(self._idle):
                if idle is not protocol:
                    idle.abort()

    def unusable(self, protocol: ClientProtocol) -> None:
        """A connection that must not be handed out."""
        with contextlib.suppress(ValueError):
            self._idle.remove(protocol)

    def forget(self, protocol: ClientProtocol) -> None:
        """A connection that has ended."""
        self.unusable(protocol)
        self._all.discard(protocol)
        emptied = self._emptied
        if emptied is not None and not self._all and not emptied.done():
            emptied.set_result(None)

    # -- for the owner --

    def sweep(self, now: float) -> None:
        """Close what has been idle for `idle_s`, and what we ended and the peer keeps; `now` is the loop's time."""
        oldest = now - self._idle_s
        while self._idle and self._idle[0].idle_at <= oldest:
            self._idle[0].abort()
        for protocol in [protocol for protocol in self._all if protocol.ends_at <= now]:
            protocol.sweep(now)

    async def close(self) -> None:
        """End all connections; a response under way is lost with `upstream_reset`. Nothing can be acquired after it."""
        self._closed = True
        for protocol in list(self._all):
            protocol.expel("the gateway closed its connections to the backend")
        if self._all:
            self._emptied = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):  # abort is a matter of loop iterations
                    await self._emptied


def _reason(error: OSError) -> str:
    """What the system calls it; asyncio's own text repeats the address instead."""
    if error.errno is not None and error.errno > 0 and not isinstance(error, tls.SSLError):
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
