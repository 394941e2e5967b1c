"""Socket options of both endpoints. Set on a listener they are inherited by what it accepts (Linux)."""

from __future__ import annotations

import contextlib
import socket
import struct

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


def quiet(sock: socket.socket) -> bool:
    """Whether nothing lies in the socket: no FIN, no RST, no byte. Takes nothing out, never waits."""
    try:
        sock.recv(1, _PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
