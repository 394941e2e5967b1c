"""The admin port's server: uvicorn in the running loop, as a task that its owner starts and ends.

It takes no signals (the supervisor does), keeps no access log, and is bound before it starts, so that a taken
port is an OSError for whoever asked and not an exit of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

_BACKLOG = 128
_MAX_CONNECTIONS = 200  # people, scrapers and scripts; beyond it uvicorn answers 503
_KEEPALIVE_S = 30
_HEAD_BYTES = 16 * 1024


class _Server(uvicorn.Server):
    """Signals belong to the supervisor."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening address for `AdminServer`. Raises OSError if it is taken or not ours."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = infos[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        # Listening now makes a taken port known here, also where another socket is bound but not listening.
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class AdminServer:
    """Serves `app` on a bound socket until `close`."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        # h11: it refuses a request without a Host or with two, which the guard relies on.
        self._app = app
        self._cutting = False
        config = uvicorn.Config(
            self._serve_one,
            http="h11",
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=_KEEPALIVE_S,
            h11_max_incomplete_event_size=_HEAD_BYTES,
        )
        self._server = _Server(config)
        self._socket = sock
        host, port = sock.getsockname()[:2]
        self.port: int = port
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve; returns when connections are accepted. Raises what kept it from that."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="admin-server")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the admin server ended while starting")
            await asyncio.sleep(0)

    async def close(self, timeout_s: float = 2.0) -> bool:
        """Stop accepting, let answers finish for at most `timeout_s`, then cut; False if it had to cut."""
        task, self._task = self._task, None
        if task is None:
            self._socket.close()
            return True
        self._server.should_exit = True
        for listener in self._server.servers:  # now, and not at its next look at the flag
            listener.close()
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
        if not done:
            await self._cut(task)
        self._socket.close()
        if task.done() and not task.cancelled():
            task.result()
        return bool(done)

    async def _cut(self, task: asyncio.Task[None]) -> None:
        """End what did not end by itself: connections first, so that nobody tries to answer on them."""
        self._cutting = True
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        await asyncio.sleep(0)
        left = {task, *self._server.server_state.tasks}
        for each in left:
            each.cancel()
        await asyncio.wait(left, timeout=1.0)

    async def _serve_one(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._cutting:
                raise  # else it ends here: uvicorn would report a cut request as an error
