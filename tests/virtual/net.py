"""TCP connections in memory, for the protocols of the gateway, its callers and its backends under virtual time.

`Socket` is what the kernel does: bounded buffers, latency, FIN, RST (also for bytes left unread at a close, and for
bytes to a closed socket), a shutdown of one direction. `Transport` is what asyncio or uvloop does on top of it: write
buffer and its marks, pausing, `eof_received`, `connection_lost` in a step of its own. What is drawn (latency, room in
the kernel, where reads are split, whether a reset discards what had arrived) comes from the loop's seed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tests.virtual.loop import VirtualLoop

FIN, RST = "FIN", "RST"
_READ_BYTES = 256 * 1024


@dataclass
class Weather:
    """How the network behaves. Seconds, bytes, probabilities."""

    latency_s: float = 0.002  # up to
    room_bytes: int = 64 * 1024  # of a direction's kernel buffers, up to
    split: float = 0.3  # that a read is cut short
    refuse: float = 0.0  # that a connection is refused
    silent: float = 0.0  # that nobody ever answers a connection's SYN
    garble: float = 0.0  # that the status line of a backend's answer is none
    strict: bool = True  # write() raises on a transport that has been aborted, as uvloop's does


class Network:
    """All sockets of a world. `wire` hears of every arrival: the history."""

    def __init__(self, loop: VirtualLoop, weather: Weather, wire: Callable[[str], None]) -> None:
        self.loop = loop
        self.rng = loop.rng
        self.weather = weather
        self.wire = wire
        self.listeners: dict[int, Listener] = {}
        self.open: dict[Socket, None] = {}
        self.garbled: set[int] = set()  # ports of backends
        self._ports = 20_000
        self._names = 0

    def listen(self, port: int = 0) -> Listener:
        """A listening socket; port 0 takes the next free one."""
        if not port:
            self._ports += 1
            port = self._ports
        listener = self.listeners[port] = Listener(self, port)
        return listener

    async def connect(self, port: int, *, surely: bool = False) -> Socket:
        """A connected socket; `surely` if anybody listens. Raises ConnectionRefusedError."""
        weather, rng = self.weather, self.rng
        if not surely and rng.random() < weather.silent:
            await self.loop.create_future()
        await asyncio.sleep(rng.uniform(0, weather.latency_s))
        listener = self.listeners.get(port)
        if listener is None or (not surely and rng.random() < weather.refuse):
            raise ConnectionRefusedError(111, "Connection refused")
        self._names += 1
        ours, theirs = (
            Socket(self, f"{side}{self._names}:{port}", at) for side, at in (("c", 0), ("s", port))
        )
        ours.peer, theirs.peer = theirs, ours
        self.loop.call_soon(listener.accept, theirs)
        return ours

    def meddled(self, sender: Socket, data: bytes) -> bytes:
        """What arrives of what was sent: as many bytes."""
        backends = sender.port in self.garbled and data.startswith(b"HTTP/1.1 ")
        if backends and self.rng.random() < self.weather.garble:
            return b"HTTP/1.x " + data[9:]
        return data


class Listener:
    """A listening socket, and the `asyncio.Server` on it."""

    def __init__(self, net: Network, port: int) -> None:
        self._net = net
        self._port = port
        self._factory: Callable[[], asyncio.Protocol] | None = None
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def serve(self, factory: Callable[[], asyncio.Protocol]) -> Listener:
        self._factory = factory
        return self

    def accept(self, sock: Socket) -> None:
        if self._factory is not None:
            Transport(sock, self._factory()).begin()
        else:
            sock.close()

    def close(self) -> None:
        self._factory = None
        if self._net.listeners.get(self._port) is self:
            del self._net.listeners[self._port]


class Socket:
    """One end of a connection, as the kernel keeps it."""

    peer: Socket

    def __init__(self, net: Network, name: str, port: int) -> None:
        self.net = net
        self.name = name
        self.port = port  # that it was accepted at; 0 for who connected
        self.room = net.rng.randint(1, net.weather.room_bytes)
        self.inbox: deque[bytes] = deque()
        self.pending = 0  # bytes from the peer on their way or in the inbox
        self.fin = False  # has arrived
        self.rst = False
        self.closed = False
        self.shut = False  # our direction
        self.linger = False
        self.transport: Transport | None = None
        self._wire: deque[bytes | str] = deque()  # towards us
        self._due_at = 0.0
        net.open[self] = None

    # -- the calls of a program --

    async def attach(self, protocol: asyncio.Protocol) -> tuple[Transport, asyncio.Protocol]:
        """What `create_connection(sock=...)` does."""
        transport = Transport(self, protocol)
        made = transport.begin()
        try:
            await made
        except BaseException:
            transport.close()
            raise
        return transport, protocol

    def send(self, data: bytes) -> int:
        """Take as much as there is room for; raises as the kernel does for a dead connection."""
        if self.rst:
            raise ConnectionResetError(104, "Connection reset by peer")
        if self.shut or self.closed:
            raise BrokenPipeError(32, "Broken pipe")
        taken = data[: max(0, self.peer.room - self.peer.pending)]
        if taken:
            self.peer.pending += len(taken)
            self.peer._coming(self.net.meddled(self, taken))
        return len(taken)

    def fileno(self) -> int:
        """No descriptor: it is looked into with `recv`."""
        return -1

    def recv(self, _: int, flags: int) -> bytes:
        """Look without taking (MSG_PEEK)."""
        assert flags & socket.MSG_PEEK
        if self.inbox:
            return self.inbox[0][:1]
        if self.rst:
            raise ConnectionResetError(104, "Connection reset by peer")
        if self.fin:
            return b""
        raise BlockingIOError

    def take(self, n: int) -> bytes:
        """Read up to `n` bytes, which makes room for the peer."""
        first = self.inbox.popleft()
        data, rest = first[:n], first[n:]
        if rest:
            self.inbox.appendleft(rest)
        self.pending -= len(data)
        peer = self.peer
        if not peer.closed:
            self.net.loop.call_later(self.net.rng.uniform(0, self.net.weather.latency_s), peer._writable)
        return data

    def shutdown(self, _: int) -> None:
        if not self.shut:
            self.shut = True
            self.peer._coming(FIN)

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self.linger = value == struct.pack("ii", 1, 0)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        del self.net.open[self]
        if self.linger or self.inbox:
            self.peer._coming(RST)
        elif not self.shut:
            self.peer._coming(FIN)
        self.inbox.clear()

    def unacknowledged(self) -> int:
        """Bytes sent that have not arrived at the peer."""
        return sum(len(item) for item in self.peer._wire if isinstance(item, bytes))

    # -- the network's side --

    def _coming(self, item: bytes | str) -> None:
        """Something is under way to us; it arrives in order."""
        loop = self.net.loop
        self._wire.append(item)
        self._due_at = max(self._due_at, loop.time() + self.net.rng.uniform(0, self.net.weather.latency_s))
        loop.call_at(self._due_at, self._arrive)

    def _arrive(self) -> None:
        item = self._wire.popleft()
        if self.closed or self.rst:
            if isinstance(item, bytes):
                self.pending -= len(item)
                if self.closed and not self.peer.rst:
                    self.peer._coming(RST)
            return
        if isinstance(item, bytes):
            self.net.wire(f"{self.name} {len(item)} {hash_of(item)}")
            self.inbox.append(item)
        elif item == FIN:
            self.net.wire(f"{self.name} FIN")
            self.fin = True
        else:
            self.net.wire(f"{self.name} RST")
            self.rst = True
            if self.net.rng.random() < 0.5:
                self.inbox.clear()
        if self.transport is not None:
            self.transport.readable()
            if self.rst:
                self.transport.writable()  # who waits for room learns of it by the failing send

    def _writable(self) -> None:
        if self.transport is not None and not self.closed:
            self.transport.writable()


class Transport(asyncio.Transport):
    """One end of a connection, as an event loop offers it."""

    def __init__(self, sock: Socket, protocol: asyncio.Protocol) -> None:
        super().__init__({"socket": sock, "peername": ("127.0.0.1", 40_000), "sockname": ("127.0.0.1", 80)})
        self._sock = sock
        self._net = sock.net
        self._loop = sock.net.loop
        self._protocol = protocol
        self._buffer = bytearray()
        self._high, self._low = 64 * 1024, 16 * 1024
        self._protocol_paused = False
        self._reading = False
        self._pumping = False
        self._eof = False
        self._closing = False
        self._aborted = False
        self._lost = False
        sock.transport = self

    def begin(self) -> asyncio.Future[None]:
        """Call `connection_made` in a step of its own; the future is done after it."""
        made: asyncio.Future[None] = self._loop.create_future()
        self._loop.call_soon(self._begin, made)
        return made

    def _begin(self, made: asyncio.Future[None]) -> None:
        self._protocol.connection_made(self)
        if not self._closing:
            self._reading = True
            self.readable()
        if not made.done():
            made.set_result(None)

    # -- reading --

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self.readable()

    def is_reading(self) -> bool:
        return self._reading

    def readable(self) -> None:
        """The kernel has something for us."""
        sock = self._sock
        if self._reading and not self._pumping and (sock.inbox or sock.fin or sock.rst):
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """One read."""
        self._pumping = False
        sock = self._sock
        if not self._reading or self._closing:
            return
        if sock.inbox:
            rng = self._net.rng
            n = rng.choice((1, 2, 7, 64, 1000)) if rng.random() < self._net.weather.split else _READ_BYTES
            self._protocol.data_received(sock.take(n))
        elif sock.rst:
            self._fail(ConnectionResetError(104, "Connection reset by peer"))
        elif sock.fin:
            self._reading = False
            if not self._protocol.eof_received():
                self.close()
        self.readable()

    # -- writing --

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._aborted and self._net.weather.strict:
            raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        self._buffer += data
        if len(self._buffer) == len(data):
            self._flush()
        if len(self._buffer) > self._high and not self._protocol_paused and not self._closing:
            self._protocol_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def writable(self) -> None:
        """The kernel has room again."""
        if self._buffer and not self._lost:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            try:
                n = self._sock.send(bytes(self._buffer))
            except OSError as error:
                self._fail(error)
                return
            del self._buffer[:n]
        if self._protocol_paused and len(self._buffer) <= self._low:
            self._protocol_paused = False
            self._protocol.resume_writing()
        if not self._buffer and self._eof:
            self._sock.shutdown(socket.SHUT_WR)
        if not self._buffer and self._closing:
            self._end(None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._aborted and self._net.weather.strict:
            raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")
        if not self._eof and not self._closing:
            self._eof = True
            self._flush()

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    # -- ending --

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reading = False
            if not self._buffer:
                self._end(None)

    def abort(self) -> None:
        self._aborted = True
        self._fail(None)

    def _fail(self, error: Exception | None) -> None:
        self._closing = True
        self._reading = False
        self._buffer.clear()
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)


def hash_of(data: bytes) -> str:
    """A short name of some bytes."""
    from hashlib import blake2b

    return blake2b(data, digest_size=6).hexdigest()
