"""The process around a gateway: event loop, signals, ports, admin server, exit code (contract B7)."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from inferencemesh.admin.app import admin_app
from inferencemesh.admin.server import AdminServer, bind
from inferencemesh.core import admission
from inferencemesh.runtime.limits import raise_open_file_limit
from inferencemesh.serving.gateway import Gateway
from inferencemesh.telemetry.log import Log

if TYPE_CHECKING:
    from inferencemesh.config.schema import Mesh

EXIT_OK, EXIT_FORCED, EXIT_USAGE = 0, 1, 2


class StartError(Exception):
    """The process cannot start; the message says what to do. Exit code 2."""


def form() -> str:
    """`interpreted`, or `compiled` where the data path's modules are extensions (docs/deployment.md, "Speed")."""
    return "interpreted" if admission.__file__.endswith(".py") else "compiled"


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` on uvloop, or on asyncio's loop where uvloop is missing."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return int(uvloop.run(main))


async def serve(
    mesh: Mesh,
    *,
    slots: dict[str, int] | None = None,
    simulator: bool = False,
    beside: Callable[[Gateway, str], Awaitable[None]] | None = None,
    remarks: Sequence[str] = (),
) -> int:
    """Run a gateway until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    `beside` runs as a task next to it once it is ready (the demo's load), with the admin port's URL. `remarks` are what
    is odd about the configuration, for the log.

    Raises:
        StartError: an address is taken or not ours.
    """
    raise_open_file_limit()
    log = Log(format=mesh.telemetry.log.format, level=mesh.telemetry.log.level)
    log.capture_stdlib()
    for remark in remarks:
        log.logger.warning("configuration", remark=remark)
    try:
        return await _serve(mesh, log, slots or {}, simulator, beside)
    finally:
        log.close()


async def _serve(
    mesh: Mesh,
    log: Log,
    slots: dict[str, int],
    simulator: bool,
    beside: Callable[[Gateway, str], Awaitable[None]] | None,
) -> int:
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    ends = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it was started by nohup
        ends.append(signal.SIGHUP)
    for number in ends:
        loop.add_signal_handler(number, signals.put_nowait, number)
    admin_socket = _bind_admin(mesh)
    gateway = Gateway(mesh, log, slots=slots, simulator=simulator)
    try:
        await gateway.start()
    except OSError as taken:
        admin_socket.close()
        raise StartError(address_message("server", mesh.server.host, mesh.server.port, taken)) from taken
    admin = AdminServer(admin_app(gateway, mesh.admin.token, host=mesh.admin.host), admin_socket)
    extra: asyncio.Task[None] | None = None
    try:
        await admin.start()
        public = f"http://{_shown_host(mesh.server.host)}:{gateway.port}"
        log.logger.info(
            "ready",
            public=public,
            admin=admin.url,
            models=[m.name for m in mesh.models],
            scope="process",
            form=form(),
        )
        if beside is not None:
            extra = asyncio.ensure_future(_as_task(beside(gateway, admin.url)))
        received = await signals.get()
        log.logger.info(
            "shutting_down",
            signal=signal.Signals(received).name,
            live=len(gateway.live),
            advice="running requests may finish; a second signal ends at once" if gateway.live else None,
        )
        if extra is not None:
            extra.cancel()
        return await _shut_down(gateway, signals, log)
    finally:
        if extra is not None:
            extra.cancel()
            await asyncio.gather(extra, return_exceptions=True)
        await admin.close()


async def _as_task(beside: Awaitable[None]) -> None:
    await beside


async def _shut_down(gateway: Gateway, signals: asyncio.Queue[int], log: Log) -> int:
    """In order; a second signal ends at once."""
    orderly = asyncio.create_task(gateway.shut_down())
    again = asyncio.create_task(signals.get())
    await asyncio.wait({orderly, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    if orderly.done():
        log.logger.info("stopped", cut=orderly.result())
        return EXIT_OK
    orderly.cancel()
    await asyncio.gather(orderly, return_exceptions=True)
    log.logger.warning("killed", live=len(gateway.live))
    await gateway.kill()
    return EXIT_FORCED


def _bind_admin(mesh: Mesh) -> socket.socket:
    try:
        return bind(mesh.admin.host, mesh.admin.port)
    except OSError as taken:
        raise StartError(address_message("admin", mesh.admin.host, mesh.admin.port, taken)) from taken


def address_message(which: str, host: str, port: int, error: OSError) -> str:
    """What to do about an address that cannot be had."""
    option = "--port" if which == "server" else "--admin-port"
    reason = error.strerror or str(error)
    return (
        f"cannot listen on {host}:{port} ({reason}). Choose another port with {option} or {which}.port, "
        f"or stop what uses it: `ss -ltnp 'sport = :{port}'` shows it."
    )


def _shown_host(host: str) -> str:
    shown = "127.0.0.1" if host in ("0.0.0.0", "") else host  # noqa: S104 - shown, not bound
    return f"[{shown}]" if ":" in shown else shown
