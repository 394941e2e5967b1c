"""Socket options of both endpoints. Set on a listener they are inherited by what it accepts (Linux)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
# A peer that acknowledges nothing for so long is gone: without this a vanished host is noticed after ~15 minutes.
USER_TIMEOUT_MS = 60_000
# How much the kernel takes beyond what the peer's window lets it send; the rest stays with us, where it is counted.
NOTSENT_LOWAT_BYTES = 128 * 1024
BACKLOG = 4096


def tune(sock: socket.socket) -> None:
    """Set what the platform has of: no delay, keep-alive probes, user timeout, bounded unsent bytes."""
    tcp = socket.IPPROTO_TCP
    options: list[tuple[int, int, int]] = [
        (tcp, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
        ("TCP_NOTSENT_LOWAT", NOTSENT_LOWAT_BYTES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            options.append((tcp, option, value))
    for level, option, value in options:
        with contextlib.suppress(OSError):  # each is an improvement, none a condition
            sock.setsockopt(level, option, value)


def listening_socket(family: int, address: tuple[object, ...], *, reuse_port: bool = False) -> socket.socket:
    """A bound, tuned, not yet listening TCP socket; raises OSError if the address is taken."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tune(sock)
        sock.setblocking(False)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def reset_on_close(sock: socket.socket) -> None:
    """Make the coming close a RST: the end of a close-delimited body must not look like its natural end."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)  # once: joining two flags costs more than the call


def looker(sock: socket.socket) -> Callable[[], bool]:
    """A function that says whether nothing lies in the open socket: no FIN, no RST, no byte.

    It takes nothing out and never waits. poll(2) is asked where there is one: it says so by an empty list, in a sixth
    of the time of the exception with which a read would.
    """
    if sock.fileno() < 0 or not hasattr(select, "poll"):
        return functools.partial(quiet, sock)
    asked = select.poll()
    asked.register(sock, select.POLLIN)  # POLLHUP and POLLERR are told unasked
    poll = asked.poll

    def look() -> bool:
        return not poll(0)

    return look


def quiet(sock: socket.socket) -> bool:
    """The same by a read that takes nothing out."""
    try:
        sock.recv(1, _PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


async def connected_socket(host: str, port: int, loop: asyncio.AbstractEventLoop) -> socket.socket:
    """A tuned socket, connected to the first address of the host that takes one. Raises OSError."""
    failed: OSError | None = None
    for family, address in await _addresses(host, port, loop):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            tune(sock)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed or OSError("the name has no address")


async def _addresses(
    host: str, port: int, loop: asyncio.AbstractEventLoop
) -> list[tuple[int, tuple[Any, ...]]]:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # a literal address needs no resolver, which is a thread
            socket.inet_pton(family, host)
            return [(family, (host, port))]
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in infos]
