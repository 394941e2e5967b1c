"""One try at one backend: the sink of the upstream's response, and the relay to the caller.

No coroutine runs per event. `on_body` gathers what one read brought, `on_read` sends what is whole through the
scanner and the tracker and to the caller in one write. The task of the exchange sleeps until `done`.

Owns its lease until `close()`, which always leaves it free or draining (contract B1, B5): free where the
backend's own end was seen or it never heard of the request, draining where the end was ours.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inferencemesh.core.errors import MeshError
from inferencemesh.core.outcome import Phase
from inferencemesh.core.request import Lease
from inferencemesh.runtime.drain import Drains
from inferencemesh.runtime.gate import Gate
from inferencemesh.runtime.http1.client import ClientConnection, ConnectError, UpstreamLost
from inferencemesh.runtime.upstream import Upstream
from inferencemesh.wire.chat import ChatTracker, plain_result
from inferencemesh.wire.sse import EventTooLarge, Scanner
from inferencemesh.wire.tracker import InBandError, PlainResult, Usage

Headers = list[tuple[bytes, bytes]]

# A plain answer up to this size is held until it is whole, so that a backend that dies in the middle of it
# becomes a 502 and not a cut body. Larger ones are passed on as they come.
PLAIN_HELD_BYTES = 4 * 1024 * 1024

# The reason of a try that the backend cannot have read: it is made again on another connection, once.
STALE = "stale_connection"


class Outlet(Protocol):
    """The caller's side, as an attempt sees it; the exchange implements it."""

    def begin(self, status: int, headers: Headers, first: bytes, *, length: int | None) -> None:
        """Start the response with its first body bytes."""

    def write(self, block: bytes) -> None:
        """Pass complete events on."""

    def finish(self, last: bytes) -> None:
        """Pass the last bytes on and end the body properly."""

    @property
    def started(self) -> bool:
        """Whether the response head was written."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of an attempt, merged for the request's model; times in seconds, sizes in bytes."""

    stream: bool
    choices: int
    prefetch: str
    prefetch_max_s: float
    first_content_s: float
    idle_s: float
    max_event_bytes: int
    strict_marker: bool


@dataclass(slots=True)
class Result:
    """How an attempt ended. `reason` is what `retries.on` and the retry metric name."""

    error: MeshError | None = None
    reason: str | int = ""
    full: bool = False  # the engine's own admission refused it: not a failure, not an attempt (B6)
    not_before_s: float = 0.0
    fault: bool = False  # counts for the breaker

    @property
    def ok(self) -> bool:
        """Whether the backend's answer is complete and goes to the caller."""
        return self.error is None and not self.full


class Attempt:
    """See the module. `run` once, `close` always."""

    __slots__ = (
        "_body",
        "_chunks",
        "_closed",
        "_drains",
        "_end_waiter",
        "_gate",
        "_held",
        "_held_bytes",
        "_inflate",
        "_loop",
        "_outlet",
        "_passing",
        "_plan",
        "_reported_start",
        "_scanner",
        "_stalled",
        "_streaming",
        "bytes_in",
        "conn",
        "dispatched_at",
        "done",
        "ended",
        "first_content_at",
        "head_at",
        "headers",
        "last_at",
        "lease",
        "notes",
        "replayed",
        "sent",
        "status",
        "tracker",
        "upstream",
        "usage",
    )

    def __init__(
        self,
        upstream: Upstream,
        lease: Lease,
        plan: Plan,
        outlet: Outlet,
        *,
        gate: Gate,
        drains: Drains,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.upstream = upstream
        self.lease = lease
        self._plan = plan
        self._outlet = outlet
        self._gate = gate
        self._drains = drains
        self._loop = loop
        self.conn: ClientConnection | None = None
        self.sent = False
        self.replayed = False
        self.ended = False  # the backend's own end of the response was seen
        self._closed = False
        self.done: asyncio.Future[Result] = loop.create_future()
        self._end_waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.headers: Headers = []
        self.dispatched_at: float | None = None
        self.head_at: float | None = None
        self.first_content_at: float | None = None
        self.last_at = 0.0
        self._stalled = False
        self._streaming = False
        self._passing = False
        self._chunks: list[bytes] = []
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._body = b""
        self._scanner: Scanner | None = None
        self.tracker = ChatTracker(plan.choices)
        self._inflate: Callable[[bytes], bytes] | None = None
        self._reported_start = False
        self.bytes_in = 0
        self.usage: Usage | None = None
        self.notes: list[str] = []

    # --- the task's side --------------------------------------------------------------------------------------

    async def run(self, payload: Callable[[], list[bytes]], *, connect_within_s: float) -> Result:
        """Connect, send, and wait for the end of the try. `payload` renders the request when it is needed."""
        while True:
            try:
                conn = await self.upstream.pool.acquire(timeout_s=connect_within_s)
            except ConnectError as lost:
                error = MeshError("upstream_unreachable", f"the backend could not be reached: {lost}")
                return Result(error, "connect", fault=True)
            self.conn = conn
            data = payload()
            self.sent = True
            self.dispatched_at = self.last_at = self._loop.time()
            conn.request(data, self)
            result = await self.done
            if result.reason != STALE or self.replayed:
                return result
            # A kept connection that the backend had closed before it could read a byte of the request.
            self.replayed = True
            self.sent = self.ended = False
            self.conn = None
            self.done = self._loop.create_future()

    async def backend_end(self, within_s: float) -> None:
        """Give the backend a short time to end its response after the success marker.

        Slot and connection then come back by its own end and not by ours.
        """
        if self.ended:
            return
        self._end_waiter = self._loop.create_future()
        timer = self._loop.call_later(within_s, _wake, self._end_waiter)
        try:
            await self._end_waiter
        finally:
            timer.cancel()

    def take_plain(self) -> tuple[int, Headers, bytes]:
        """The whole plain answer."""
        return self.status, self.headers, self._body

    @property
    def phase(self) -> Phase:
        """How far the *upstream's* answer had come."""
        if self.head_at is None:
            return Phase.BEFORE_HEADERS
        if self.ended and (not self._streaming or self.tracker.complete):
            return Phase.COMPLETE
        return Phase.AFTER_CONTENT if self.first_content_at is not None else Phase.BEFORE_CONTENT

    def pause(self) -> None:
        """The caller takes nothing at the moment: stop reading (A11). Its time is not the backend's (C7)."""
        self._stalled = True
        if self.conn is not None:
            self.conn.pause()

    def resume(self) -> None:
        """The caller reads again."""
        self._stalled = False
        self.last_at = self._loop.time()
        if self.conn is not None:
            self.conn.resume()

    def fail(self, error: MeshError, reason: str | int | None = None, *, fault: bool = False) -> None:
        """End the try from our side; nothing of it is relayed from here on."""
        self._resolve(Result(error, error.code if reason is None else reason, fault=fault))

    def check(self, now: float) -> None:
        """The sweep: first content, idle gap, prefetch limit (C1, C7)."""
        if self.done.done() or self.dispatched_at is None:
            return
        plan = self._plan
        if plan.stream and self.first_content_at is None and (self._streaming or self.head_at is None):
            if now - self.dispatched_at >= plan.first_content_s:
                message = f"the backend produced no content within {plan.first_content_s:g} s"
                self.fail(MeshError("first_content_timeout", message), fault=True)
            elif (
                self.head_at is not None
                and not self._outlet.started
                and now - self.head_at >= plan.prefetch_max_s
            ):
                self._outlet.begin(self.status, self.headers, b"", length=None)
        elif self.head_at is not None and not self._stalled and now - self.last_at >= plan.idle_s:
            if self._streaming and self.tracker.complete and not plan.strict_marker:
                self._complete(b"")  # every choice has finished; only the end of the body does not come
                return
            message = f"the backend sent nothing for {plan.idle_s:g} s in the middle of its answer"
            self.fail(MeshError("idle_timeout", message), fault=True)

    def close(self) -> None:
        """Free the lease, or hand it to the drains. Synchronous and idempotent (B3)."""
        if self._closed:
            return
        self._closed = True
        if not self.done.done():
            self.done.cancel()
        conn = self.conn
        if self.ended or conn is None:
            self._gate.release(self.lease)
        elif not self.sent:
            conn.abort()
            self._gate.release(self.lease)
        else:
            self._drains.adopt(self.lease, conn, self.upstream)

    # --- the connection's side: called from data_received -----------------------------------------------------

    def on_head(self, status: int, headers: Headers) -> None:
        """The upstream's status line and headers."""
        self.status = status
        self.headers = headers
        self.head_at = self.last_at = self._loop.time()
        content_type = encoding = b""
        for name, value in headers:
            if name == b"content-type":
                content_type = value
            elif name == b"content-encoding":
                encoding = value.strip().lower()
        if encoding and encoding != b"identity":
            self._decode(encoding)
        if (
            self._plan.stream
            and 200 <= status < 300
            and content_type.lower().startswith(b"text/event-stream")
        ):
            self._streaming = True
            self._scanner = Scanner(self._plan.max_event_bytes)
            if self._plan.prefetch == "off" and not self.done.done() and not self._outlet.started:
                self._outlet.begin(status, headers, b"", length=None)

    def on_body(self, chunk: bytes) -> None:
        """Body bytes; several times per read."""
        self._chunks.append(chunk)

    def on_read(self) -> None:
        """The read is over: what is whole leaves in one write."""
        self.last_at = self._loop.time()
        if not self._chunks:
            return
        data = self._take_chunks()
        if self.done.done():
            return
        if self._streaming:
            self._flow(data)
        else:
            self._gather(data)

    def on_end(self) -> None:
        """The backend ended its response: its slot is free at once (B5)."""
        self.last_at = self._loop.time()
        data = self._take_chunks() if self._chunks else b""
        self.ended = True
        try:
            if not self.done.done():
                if self._streaming:
                    self._stream_end(data)
                else:
                    self._plain_end(data)
        finally:
            self._backend_ended()

    def on_lost(self, lost: UpstreamLost) -> None:
        """The connection ended before the response did."""
        by_backend = lost.code == "upstream_reset" and lost.peer_closed
        self.ended = by_backend
        if not self.done.done():
            if lost.unread and not self.replayed:
                self.fail(_lost_error(lost), STALE)
                return  # the slot stays ours: the request has not reached the backend yet
            if self._streaming and by_backend and self.tracker.finished and not self._plan.strict_marker:
                self._complete(b"")
            elif lost.code == "internal":
                self.fail(MeshError("internal", "the gateway failed while it relayed the answer"))
            else:
                self.fail(_lost_error(lost), fault=True)
        if by_backend:
            self._backend_ended()
        elif self._end_waiter is not None:
            _wake(self._end_waiter)

    # --- streams ----------------------------------------------------------------------------------------------

    def _flow(self, data: bytes) -> None:
        scanner = self._scanner
        if scanner is None:
            return
        try:
            block = scanner.feed(data)
        except EventTooLarge as too_large:
            if too_large.complete:
                self._pass(too_large.complete)
            message = (
                f"the backend sent an event larger than stream.max_event ({self._plan.max_event_bytes} bytes)"
            )
            self.fail(MeshError("upstream_protocol", message), fault=True)
            return
        if block:
            self._pass(block)

    def _pass(self, block: bytes) -> None:
        tracker = self.tracker
        allowed = tracker.feed(block)
        if allowed != len(block):
            block = block[:allowed]
        if self.first_content_at is None and tracker.content:
            self.first_content_at = self.last_at
            self._started()
        if tracker.error is not None:
            if self.first_content_at is not None:
                self._emit(block)
            self._in_band(tracker.error)
        elif tracker.marker:
            self._complete(block)
        else:
            self._emit(block)

    def _emit(self, block: bytes) -> None:
        """Relay, or hold while the response may not start yet (C1)."""
        if self.first_content_at is not None or self._plan.prefetch != "first_content":
            if self._held:
                self._held.append(block)
                block = b"".join(self._held)
                self._held.clear()
            if not block:
                return
            if self._outlet.started:
                self._outlet.write(block)
            else:
                self._outlet.begin(self.status, self.headers, block, length=None)
            return
        self._held.append(block)
        self._held_bytes += len(block)
        if self._held_bytes > self._plan.max_event_bytes:
            message = "the backend sent more than stream.max_event bytes before any content"
            self.fail(MeshError("upstream_protocol", message), fault=True)

    def _complete(self, last: bytes) -> None:
        if self._held:
            self._held.append(last)
            last = b"".join(self._held)
            self._held.clear()
        if not self._outlet.started:
            self._outlet.begin(self.status, self.headers, b"", length=None)
        self._outlet.finish(last)
        self.usage = self.tracker.usage
        self._resolve(Result())

    def _stream_end(self, data: bytes) -> None:
        """A clean end of the body: success only with a completion signal before it (C3)."""
        if data:
            self._flow(data)
        if self.done.done() or self._scanner is None:
            return
        tail = self._scanner.tail
        if tail and not self.tracker.complete:
            # Some servers end the body right after the marker's line. A whole event may not be lost for want of
            # its blank line; anything else is an incomplete event and is dropped (C6).
            probe = ChatTracker(1)
            probe.feed(tail.rstrip(b"\r\n") + b"\n\n")
            if probe.marker:
                self.notes.append("blank_line_missing")
                self._pass(tail.rstrip(b"\r\n") + b"\n\n")
                return
        if self.tracker.complete and not self._plan.strict_marker:
            self._complete(b"")
            return
        if self.tracker.complete:
            message = "the backend ended its stream without [DONE], and stream.strict_marker is set"
        else:
            message = "the backend ended its stream before the answer was complete"
        self.fail(MeshError("upstream_incomplete", message), fault=True)

    # --- plain answers ----------------------------------------------------------------------------------------

    def _gather(self, data: bytes) -> None:
        if self._passing:
            self._outlet.write(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes <= PLAIN_HELD_BYTES:
            return
        if not 200 <= self.status < 300 or self._plan.stream:
            message = "the backend answered with a body that is too large for what it is"
            self.fail(MeshError("upstream_protocol", message), fault=True)
            return
        self._passing = True
        self.first_content_at = self.last_at
        self._started()
        first = b"".join(self._held)
        self._held.clear()
        self._outlet.begin(self.status, self.headers, first, length=_content_length(self.headers))

    def _plain_end(self, data: bytes) -> None:
        if self._passing:
            self._outlet.finish(data)
            self._resolve(Result())
            return
        if data:
            self._held.append(data)
        self._body = b"".join(self._held)
        self._held.clear()
        self._resolve(self._judge())

    def _judge(self) -> Result:
        """What a whole plain answer means (error table)."""
        status = self.status
        engine = self.upstream.engine
        result = plain_result(self._body) if self._body[:1] in (b"{", b"[") else PlainResult(None, None)
        if engine.is_full(status, result.error):
            return Result(full=True, reason="full", not_before_s=_retry_after_s(self.headers))
        if status >= 500:
            error = MeshError("upstream_error", _said(f"the backend answered {status}", result.error))
            return Result(error, status, fault=True)
        if status in (401, 403, 404):
            message = f"the backend answered {status}: its key or model name in the gateway's configuration is wrong"
            return Result(MeshError("upstream_auth", message), status)
        if status >= 400:
            return Result()  # the caller's own mistake: passed on with its body
        if not 200 <= status < 300:
            return Result(
                MeshError("upstream_protocol", f"the backend answered {status}"), status, fault=True
            )
        if result.error is not None:
            return self._error_result(result.error)
        if self._plan.stream:
            message = "a stream was asked for and the backend answered without one"
            return Result(MeshError("upstream_protocol", message), "upstream_protocol", fault=True)
        self.usage = result.usage
        self.first_content_at = self.last_at
        self._started()
        return Result()

    # --- shared -----------------------------------------------------------------------------------------------

    def _in_band(self, error: InBandError) -> None:
        if self.upstream.engine.is_full(200, error):
            self._resolve(Result(full=True, reason="full", not_before_s=_retry_after_s(self.headers)))
        else:
            self._resolve(self._error_result(error))

    def _error_result(self, error: InBandError) -> Result:
        """An error inside a 200: its status, where it names one, decides like the real one (C3)."""
        reason = error.status if error.status is not None else "upstream_error"
        return Result(
            MeshError("upstream_error", _said("the backend reported an error", error)), reason, fault=True
        )

    def _started(self) -> None:
        if not self._reported_start:
            self._reported_start = True
            self._gate.started(self.lease)

    def _backend_ended(self) -> None:
        # A slot that the backend refused as full is given back by `Gate.requeue`, in the step in which the believed
        # capacity shrinks: freed before, it would be granted to the next waiter, who would find the same.
        if not self._closed and not self._is_full():
            self._gate.release(self.lease)
        if self._end_waiter is not None:
            _wake(self._end_waiter)

    def _is_full(self) -> bool:
        return self.done.done() and not self.done.cancelled() and self.done.result().full

    def _resolve(self, result: Result) -> None:
        if not self.done.done():
            self.done.set_result(result)

    def _take_chunks(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.bytes_in += len(data)
        if self._inflate is not None:
            data = self._inflate(data)
        return data

    def _decode(self, encoding: bytes) -> None:
        """We ask for identity; a backend that compresses all the same is decoded as it comes."""
        if encoding not in (b"gzip", b"x-gzip", b"deflate"):
            message = f"the backend used content-encoding {encoding.decode('latin-1')} though identity was asked for"
            self.fail(MeshError("upstream_protocol", message), fault=True)
            return
        inflater = zlib.decompressobj(wbits=47 if encoding != b"deflate" else 15)

        def inflate(data: bytes) -> bytes:
            try:
                return inflater.decompress(data)
            except zlib.error:
                self.fail(
                    MeshError("upstream_protocol", "the backend's compressed body is broken"), fault=True
                )
                return b""

        self._inflate = inflate
        self.headers = [
            (name, value)
            for name, value in self.headers
            if name not in (b"content-encoding", b"content-length")
        ]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _lost_error(lost: UpstreamLost) -> MeshError:
    return MeshError(lost.code, str(lost) or "the connection to the backend was lost")


def _said(what: str, error: InBandError | None) -> str:
    if error is None or not error.message:
        return what
    return f"{what}: {error.message[:500]}"


def _content_length(headers: Headers) -> int | None:
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return None


def _retry_after_s(headers: Headers) -> float:
    """Seconds of a Retry-After in its numeric form; other forms, negative and absurd values are ignored (O14)."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit() and len(value) <= 4:
            return float(value)
    return 0.0
