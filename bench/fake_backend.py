"""A model server that costs a few microseconds a request, so that the gateway is what is measured.

    python -m bench.fake_backend [--port N] [--cpu N]

Prints `{"port": N, "pid": N}` on one line and runs until its standard input closes, or SIGTERM. Chat completions are
answered as their body asks (see messages.py); `GET /bench/stats` says what was served; any other GET lists
the one model. Every event is a write of its own; one clock paces all streams in steps of a millisecond.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import signal
import sys
import time
from typing import Any, cast

import httptools
import uvloop

from bench import messages
from bench.messages import LAST_CHUNK, Plan, framed, parse_plan

MAX_BODY_BYTES = 1 << 20
_HEAD_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_ROLE = framed(messages.ROLE_EVENT)
_EVENTS = [framed(messages.content_event(number)) for number in range(messages.NUMBERED)]
_END = framed([messages.FINISH_EVENT, messages.DONE_EVENT]) + LAST_CHUNK


def _answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


_PLAIN = _answer(messages.plain_body())
_MODELS = _answer(
    json.dumps({"object": "list", "data": [{"id": messages.MODEL, "object": "model"}]}).encode()
)
_BAD = _answer(b'{"error":{"message":"bad request"}}', "400 Bad Request")


class Stats:
    """What was served since the start."""

    __slots__ = ("connections", "cut", "events", "late", "open_streams", "requests", "streams")

    def __init__(self) -> None:
        self.connections = 0  # accepted
        self.requests = 0
        self.streams = 0
        self.events = 0  # content events
        self.cut = 0  # streams whose reader left before the end
        self.late = 0  # events that left more than 5 ms after their time
        self.open_streams = 0

    def as_dict(self) -> dict[str, int]:
        """For `GET /bench/stats`, with the process's own CPU time."""
        shown = {name: int(getattr(self, name)) for name in self.__slots__}
        return shown | {"cpu_ns": time.process_time_ns()}


class Stream:
    """One paced stream: which event is next, and when."""

    __slots__ = ("due_ms", "gone", "interval_ms", "left", "number", "protocol")

    def __init__(self, protocol: FakeProtocol, plan: Plan, now_ms: int) -> None:
        self.protocol = protocol
        self.interval_ms = max(1, plan.interval_ms)
        self.due_ms = now_ms + plan.first_ms
        self.left = plan.tokens
        self.number = 0
        self.gone = False


class Pacer:
    """One timer for all streams: those due in the same millisecond are served in one go."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stats: Stats) -> None:
        self._loop = loop
        self._stats = stats
        self._due: dict[int, list[Stream]] = {}
        self._last_ms = self.now_ms()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def now_ms(self) -> int:
        """The loop's clock in whole milliseconds."""
        return int(self._loop.time() * 1000)

    def add(self, stream: Stream) -> None:
        """Serve `stream` when it is due."""
        due_ms = max(stream.due_ms, self._last_ms + 1)
        self._due.setdefault(due_ms, []).append(stream)
        if self._timer is None or due_ms < self._timer_ms:
            self._arm(due_ms)

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(max(0.0005, due_ms / 1000 - self._loop.time()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        waiting = self._due
        if now_ms - self._last_ms <= len(waiting):
            ready = [ms for ms in range(self._last_ms + 1, now_ms + 1) if ms in waiting]
        else:
            ready = sorted(ms for ms in waiting if ms <= now_ms)
        self._last_ms = now_ms
        stats = self._stats
        for ms in ready:
            if now_ms - ms > 5:
                stats.late += len(waiting[ms])
            for stream in waiting.pop(ms):
                if stream.gone:
                    continue
                transport = stream.protocol.transport
                if stream.left <= 0:
                    stream.protocol.finish_stream()
                    continue
                transport.write(_EVENTS[stream.number])
                stats.events += 1
                stream.left -= 1
                stream.number = (stream.number + 1) % messages.NUMBERED
                stream.due_ms += stream.interval_ms
                due_ms = stream.due_ms if stream.due_ms > now_ms else now_ms + 1
                later = waiting.get(due_ms)
                if later is None:
                    waiting[due_ms] = [stream]
                else:
                    later.append(stream)
        if waiting and self._timer is None:
            following = now_ms + 1
            self._arm(following if following in waiting else min(waiting))


@functools.lru_cache(maxsize=256)
def _plan_of(body: bytes) -> Plan:
    return parse_plan(body)


@functools.lru_cache(maxsize=256)
def _whole_stream(tokens: int) -> bytes:
    return _HEAD_STREAM + _ROLE + b"".join(_EVENTS[n % messages.NUMBERED] for n in range(tokens)) + _END


class FakeProtocol(asyncio.Protocol):
    """One connection from a gateway. Requests are taken one after the other."""

    __slots__ = ("_body", "_keep", "_pacer", "_parser", "_stats", "_stream", "_url", "transport")

    transport: asyncio.Transport

    def __init__(self, pacer: Pacer, stats: Stats) -> None:
        self._pacer = pacer
        self._stats = stats
        self._parser: Any = httptools.HttpRequestParser(self)
        self._body = b""
        self._url = b""
        self._keep = True
        self._stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._stats.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_stream()

    def eof_received(self) -> bool:
        self._drop_stream()
        return False

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.gone = True
            self._stream = None
            self._stats.cut += 1
            self._stats.open_streams -= 1

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.write(_BAD)
            self.transport.close()

    # The parser's callbacks. There is none for headers: nothing here depends on them.
    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body = self._body + body if self._body else body
        if len(self._body) > MAX_BODY_BYTES:
            self.transport.abort()

    def on_message_complete(self) -> None:
        # Only in here the parser knows whether the connection is to be kept.
        self._keep = self._parser.should_keep_alive()
        body, self._body = self._body, b""
        stats = self._stats
        stats.requests += 1
        if not body:
            self._end(_answer(json.dumps(stats.as_dict()).encode()) if b"stats" in self._url else _MODELS)
            return
        plan = _plan_of(body)
        if not plan.stream:
            self._end(_PLAIN)
            return
        stats.streams += 1
        if plan.interval_ms == 0 and plan.first_ms == 0:
            stats.events += plan.tokens
            self._end(_whole_stream(plan.tokens))
            return
        self.transport.write(_HEAD_STREAM + _ROLE)
        self._stream = Stream(self, plan, self._pacer.now_ms())
        stats.open_streams += 1
        self._pacer.add(self._stream)

    def finish_stream(self) -> None:
        """The stream's content was sent: send its end."""
        self._stream = None
        self._stats.open_streams -= 1
        self._end(_END)

    def _end(self, data: bytes) -> None:
        self.transport.write(data)
        if not self._keep:
            self.transport.close()


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    stats = Stats()
    pacer = Pacer(loop, stats)
    server = await loop.create_server(lambda: FakeProtocol(pacer, stats), "127.0.0.1", port, backlog=4096)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if not sys.stdin.isatty():
        loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(0, 4096) else stop.set())
    bound = server.sockets[0].getsockname()[1]
    print(json.dumps({"port": bound, "pid": os.getpid()}), flush=True)
    gc.collect()
    gc.freeze()
    await stop.wait()
    server.close()


def main() -> None:
    """Entry of `python -m bench.fake_backend`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cpu", type=int, default=None)
    options = parser.parse_args()
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    uvloop.run(_serve(options.port))


if __name__ == "__main__":
    main()
