"""The load generator's connections: closed loops, whole streams, single requests with their latency."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar, cast

from bench import messages

MAX_FAULTS = 5  # texts kept; all are counted
PLAIN_TAIL = messages.PLAIN_TAIL
STREAM_TAIL = messages.DONE_EVENT + b"\r\n" + messages.LAST_CHUNK
CONTENT = b'"content":" '
_OK = b"HTTP/1.1 200 "
_MAX_HELD_BYTES = 1 << 20


class Tally:
    """What has arrived so far."""

    __slots__ = ("bytes", "done", "events", "fault_count", "faults", "reads")

    def __init__(self) -> None:
        self.done = 0  # whole answers
        self.events = 0
        self.reads = 0
        self.bytes = 0
        self.fault_count = 0
        self.faults: list[str] = []

    def fault(self, text: str | None) -> None:
        """Note what was wrong, if anything was."""
        if text is not None:
            self.fault_count += 1
            if len(self.faults) < MAX_FAULTS:
                self.faults.append(text)


class Client(asyncio.Protocol):
    """One connection. A subclass says what to do with what arrives."""

    def __init__(self, tally: Tally, request: bytes) -> None:
        self.tally = tally
        self.request = request
        self.transport: asyncio.Transport
        self.stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.stopped:
            self.tally.fault(f"connection lost in a request: {exc!r}")

    def send(self) -> None:
        self.transport.write(self.request)

    def stop(self) -> None:
        self.stopped = True
        self.transport.abort()


class Looper(Client):
    """Closed loop: an answer is whole when it ends as answers end; then the next request goes out."""

    def __init__(self, tally: Tally, request: bytes, tail: bytes, events: int) -> None:
        super().__init__(tally, request)
        self.tail = tail
        self.events = events  # that each answer must have; 0 for plain ones
        self.held = b""
        self.first_answer = b""

    def data_received(self, data: bytes) -> None:
        tally = self.tally
        tally.reads += 1
        if self.held:
            data = self.held + data
        if not data.endswith(self.tail):
            self.held = data
            if len(data) > _MAX_HELD_BYTES or not data.startswith(_OK[: len(data)]):
                tally.fault(f"not the answer: {data[:200]!r}")
                self.stop()
            return
        self.held = b""
        if not self.first_answer:
            self.first_answer = data
        if not data.startswith(_OK) or (self.events and data.count(b"\n\n") != self.events):
            tally.fault(f"not the answer: {data[:200]!r}")
            self.stop()
            return
        tally.done += 1
        tally.events += self.events
        tally.bytes += len(data)
        if not self.stopped:
            self.transport.write(self.request)


class Reader(Client):
    """One stream, kept whole, for the strict check afterwards."""

    def __init__(self, tally: Tally, request: bytes) -> None:
        super().__init__(tally, request)
        self.pieces: list[bytes] = []
        self.ended = False

    def data_received(self, data: bytes) -> None:
        tally = self.tally
        tally.reads += 1
        tally.events += data.count(b"\n\n")
        tally.bytes += len(data)
        self.pieces.append(data)
        if data.endswith(messages.LAST_CHUNK):
            tally.done += 1
            self.ended = True
            self.stop()

    def pieces_joined(self) -> bytes:
        """All that came."""
        return b"".join(self.pieces)


class Probe(Client):
    """One request at a time with its latency: until content (`first`), or until the end."""

    def __init__(self, tally: Tally, request: bytes, tail: bytes, first: bool, free: list[Probe]) -> None:
        super().__init__(tally, request)
        self.tail = tail
        self.first = first
        self.free = free
        self.held = b""
        self.sent_at = 0.0
        self.noted = False
        self.latencies: list[float] = []

    def send(self) -> None:
        self.noted = False
        self.sent_at = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.tally.reads += 1
        self.held += data
        whole = self.held.endswith(self.tail)
        if not self.noted and (whole or (self.first and CONTENT in self.held)):
            self.noted = True
            self.latencies.append(now - self.sent_at)
        if whole:
            if not self.held.startswith(_OK):
                self.tally.fault(f"not the answer: {self.held[:200]!r}")
            self.tally.done += 1
            self.held = b""
            self.free.append(self)


C = TypeVar("C", bound=Client)


async def connect(make: Callable[[], C], port: int) -> C:
    """A connection to a port of this machine."""
    _, client = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
    return client
