"""One try at one backend: the sink of the upstream's response (contract B1, B5, C7).

No coroutine runs per event: `on_body` gathers what one read brought, `on_read` gives it to the relay, and the task of
the exchange, where it has one, sleeps until there is a `result`.

Owns its lease until `close()`, which always leaves it free or draining: free where the backend's own end was seen or
it never heard of the request, draining where the end was ours.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from inferencemesh.core.errors import MeshError
from inferencemesh.core.outcome import Phase
from inferencemesh.core.request import Lease
from inferencemesh.runtime.drain import Drains
from inferencemesh.runtime.gate import Gate
from inferencemesh.runtime.held import COMPRESSIONS, HeldBudget, Inflater
from inferencemesh.runtime.http1.client import ClientConnection, ConnectError, UpstreamLost
from inferencemesh.runtime.relay import NOBODY, Outlet, Plan, StreamRelay
from inferencemesh.runtime.upstream import Upstream
from inferencemesh.runtime.verdict import (
    Headers,
    Result,
    content_length,
    judge_plain,
    lost_error,
    protocol_fault,
)
from inferencemesh.wire.chat import ChatTracker
from inferencemesh.wire.tracker import Usage

# A plain answer up to this size is held until it is whole, so that a backend that dies in the middle of it
# becomes a 502 and not a cut body. Larger ones are passed on as they come.
PLAIN_HELD_BYTES = 4 * 1024 * 1024

# The reason of a try that the backend cannot have read: it is made again on another connection, once.
STALE = "stale_connection"


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
        "_held_budget",
        "_held_bytes",
        "_inflate",
        "_loop",
        "_on_result",
        "_outlet",
        "_passing",
        "_plan",
        "_relay",
        "_replayed",
        "_stalled",
        "_waiter",
        "attempt_id",
        "bytes_in",
        "conn",
        "dispatched_at",
        "ended",
        "first_content_at",
        "head_at",
        "headers",
        "last_at",
        "lease",
        "result",
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
        attempt_id: str,
        gate: Gate,
        drains: Drains,
        held_budget: HeldBudget,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.upstream = upstream
        self.attempt_id = attempt_id
        self.lease = lease
        self._plan = plan
        self._outlet = outlet
        self._gate = gate
        self._drains = drains
        self._held_budget = held_budget
        self._loop = loop
        self.conn: ClientConnection | None = None
        self.sent = False
        self.ended = False  # the backend's own end of the response was seen
        self._closed = False
        self._replayed = False
        self.result: Result | None = None
        self._on_result: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._end_waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.headers: Headers = []
        self.dispatched_at: float | None = None
        self.head_at: float | None = None
        self.first_content_at: float | None = None
        self.last_at = 0.0
        self._stalled = False
        self._passing = False  # a plain answer too large to be held
        self._chunks: list[bytes] = []
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._body = b""
        self._relay: StreamRelay | None = None
        self._inflate: Inflater | None = None
        self.tracker = ChatTracker(plan.choices)
        self.bytes_in = 0
        self.usage: Usage | None = None

    # --- the task's side --------------------------------------------------------------------------------------

    async def run(self, payload: Callable[[], list[bytes]], *, connect_within_s: float) -> Result:
        """Connect and send, unless it was sent already, and wait for the end of the try.

        `payload` renders the request when it is needed.
        """
        while True:
            if not self.sent:
                try:
                    conn = await self.upstream.pool.acquire(timeout_s=connect_within_s)
                except ConnectError as lost:
                    # The operator's log says which and why; callers are not told addresses.
                    error = MeshError("upstream_unreachable", "the backend could not be reached")
                    error.details["detail"] = str(lost)
                    return Result(error, "connect", fault=True)
                self.send(conn, payload)
            result = self.result
            if result is None:
                self._waiter = self._loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
                continue
            if result.reason != STALE or self._replayed:
                return result
            # A kept connection that the backend had closed before it could read a byte of the request.
            self._replayed = True
            self.sent = self.ended = False
            self.conn = None
            self.result = None

    def notify(self, on_result: Callable[[], None]) -> None:
        """Call `on_result` once there is a result that nobody waits for.

        With the end of the answer itself that is at once, as the last thing; else in a step of its own.
        """
        self._on_result = on_result

    def send(self, conn: ClientConnection, payload: Callable[[], list[bytes]]) -> None:
        """Send the request on a connection that is at hand; `result` tells the end."""
        self.conn = conn
        data = payload()
        self.sent = True
        self.dispatched_at = self.last_at = self._loop.time()
        conn.request(data, self)

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

    def forget_body(self) -> None:
        """The answer has been handed over: only what the caller has not taken yet is kept."""
        self._body = b""

    def take_plain(self) -> tuple[int, Headers, bytes]:
        """The whole plain answer."""
        return self.status, self.headers, self._body

    @property
    def over(self) -> bool:
        """Whether it has its result, or was closed without one."""
        return self.result is not None or self._closed

    @property
    def limit_at(self) -> float:
        """Until when the backend may work on it in the worst case, whatever the caller's own deadline (B5)."""
        sent_at = self.dispatched_at if self.dispatched_at is not None else self._loop.time()
        return sent_at + self._plan.total_s

    @property
    def phase(self) -> Phase:
        """How far the *upstream's* answer had come."""
        if self.head_at is None:
            return Phase.BEFORE_HEADERS
        if self.ended and (self._relay is None or self.tracker.complete):
            return Phase.COMPLETE
        return Phase.AFTER_CONTENT if self.first_content_at is not None else Phase.BEFORE_CONTENT

    @property
    def notes(self) -> tuple[str, ...]:
        """What was odd about the answer, as words for the log."""
        relay = self._relay
        if relay is None:
            return ()
        return (*self.tracker.notes, relay.note) if relay.note is not None else self.tracker.notes

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

    def fail(self, error: MeshError, *, fault: bool = False) -> None:
        """End the try from our side; nothing of it is relayed from here on."""
        self._resolve(Result(error, error.code, fault=fault))

    def check(self, now: float) -> None:
        """The sweep: first content, idle gap, prefetch limit (C1, C7)."""
        if self.over or self.dispatched_at is None:
            return
        plan, relay = self._plan, self._relay
        if plan.stream and self.first_content_at is None and (relay is not None or self.head_at is None):
            if now - self.dispatched_at >= plan.first_content_s:
                message = f"the backend produced no content within {plan.first_content_s:g} s"
                self.fail(MeshError("first_content_timeout", message), fault=True)
            elif relay is not None and self.head_at is not None and now - self.head_at >= plan.prefetch_max_s:
                relay.begin()
        elif self.head_at is not None and not self._stalled and now - self.last_at >= plan.idle_s:
            if relay is not None and self.tracker.complete and not plan.strict_marker:
                self._resolve(
                    relay.complete()
                )  # every choice has finished; only the end of the body is missing
                return
            message = f"the backend sent nothing for {plan.idle_s:g} s in the middle of its answer"
            self.fail(MeshError("idle_timeout", message), fault=True)

    def close(self) -> None:
        """Free the lease, or hand it to the drains. Synchronous and idempotent (B3)."""
        if self._closed:
            return
        self._closed = True
        self._held_budget.give_back(self)
        if self._waiter is not None:
            self._waiter.cancel()
        conn = self.conn
        if self.ended or conn is None:
            self._gate.release(self.lease)
        elif not self.sent:
            conn.release()
            self._gate.release(self.lease)
        else:
            self._drains.adopt(
                self.lease, conn, self.upstream, limit_at=self.limit_at, attempt_id=self.attempt_id
            )

    def unlink(self) -> None:
        """The exchange is over: let go of it, and of the relay that knows us both."""
        self._outlet = NOBODY
        self._on_result = None
        self._relay = None

    # --- the connection's side: called from data_received -----------------------------------------------------

    def on_head(self, status: int, headers: Headers) -> None:
        """The upstream's status line and headers."""
        self.status = status
        self.headers = headers
        self.head_at = self.last_at = self._loop.time()
        if self.over:
            return
        content_type = encoding = b""
        for name, value in headers:
            if name == b"content-type":
                content_type = value
            elif name == b"content-encoding":
                encoding = value.strip().lower()
        if encoding and encoding != b"identity" and not self._decode(encoding):
            return
        if self._plan.stream and 200 <= status < 300 and content_type[:17].lower() == b"text/event-stream":
            self._relay = StreamRelay(
                self._plan,
                self._outlet,
                self.tracker,
                self.upstream.engine,
                status,
                self.headers,
                self._content_came,
            )

    def on_body(self, chunk: bytes) -> None:
        """Body bytes; several times per read."""
        self._chunks.append(chunk)

    def on_read(self) -> None:
        """The read is over: what is whole leaves in one write."""
        self.last_at = self._loop.time()
        if not self._chunks:
            return
        data = self._take_chunks()
        if self.over:
            return
        relay = self._relay
        if relay is None:
            self._gather(data)
            return
        decided = relay.feed(data)
        self.lease.output_tokens = self.tracker.events  # until the backend has counted them (D3)
        if decided is not None:
            self._resolve(decided)

    def on_end(self) -> None:
        """The backend ended its response: its slot is free at once (B5)."""
        self.last_at = self._loop.time()
        data = self._take_chunks() if self._chunks else b""
        self.ended = True
        if self.over:
            self._backend_ended()
            return
        on_result, self._on_result = self._on_result, None
        try:
            if self._inflate is not None and not self._inflate.whole:
                self._resolve(protocol_fault("the backend's compressed body is incomplete"))
            else:
                self._resolve(self._relay.end(data) if self._relay is not None else self._plain_end(data))
        finally:
            try:
                self._backend_ended()
            finally:
                if self.result is None:
                    self._on_result = on_result
                elif on_result is not None:
                    on_result()

    def on_lost(self, lost: UpstreamLost) -> None:
        """The connection ended before the response did; by the backend only if its own close was seen."""
        by_backend = lost.code == "upstream_reset" and lost.peer_closed
        self.ended = by_backend
        if not self.over:
            if lost.unread and not self._replayed:
                self._resolve(Result(lost_error(lost), STALE))
                return  # the slot stays ours: the request has not reached the backend yet
            relay = self._relay
            if relay is not None and by_backend and self.tracker.complete and not self._plan.strict_marker:
                self._resolve(relay.complete())
            else:
                # A kept connection that ends without a byte of an answer says nothing about the backend's health:
                # most likely it was closed for being idle.
                idle_close = self.conn is not None and self.conn.reused and not lost.seen_bytes
                self.fail(lost_error(lost), fault=lost.code != "internal" and not idle_close)
        if by_backend:
            self._backend_ended()
        elif self._end_waiter is not None:
            _wake(self._end_waiter)

    # --- plain answers ----------------------------------------------------------------------------------------

    def _gather(self, data: bytes) -> None:
        if self._passing:
            self._outlet.write(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes <= PLAIN_HELD_BYTES and self._held_budget.take(self, len(data)):
            return
        if not 200 <= self.status < 300 or self._plan.stream:
            self._resolve(protocol_fault("the backend answered with a body that is too large for what it is"))
            return
        self._passing = True
        self._content_came()
        first = b"".join(self._held)
        self._held.clear()
        length = content_length(self.headers)
        self._outlet.begin(self.status, self.headers, first, length=length)

    def _plain_end(self, data: bytes) -> Result:
        if self._passing:
            self._outlet.finish(data)
            return Result()
        if data:
            self._held.append(data)
        self._body = b"".join(self._held)
        self._held.clear()
        result = judge_plain(
            self.upstream.engine, self.status, self.headers, self._body, stream=self._plan.stream
        )
        if result.ok and self.status < 300:
            self._content_came()
        if self.status >= 400 and self.upstream.api_key:
            self._body = self._body.replace(self.upstream.api_key.encode(), b"[redacted]")  # G3
        return result

    # --- shared -----------------------------------------------------------------------------------------------

    def _content_came(self) -> None:
        """The first content: a time for the metrics, and a proof of the believed capacity (B6)."""
        self.first_content_at = self.last_at
        self._gate.started(self.lease)

    def _backend_ended(self) -> None:
        # A slot that the backend refused as full is given back by `Gate.requeue`, in the step in which the believed
        # capacity shrinks: freed before, it would be granted to the next waiter, who would find the same.
        if not self._closed and not self._is_full():
            self._gate.release(self.lease)
        if self._end_waiter is not None:
            _wake(self._end_waiter)

    def _is_full(self) -> bool:
        return self.result is not None and self.result.full

    def _resolve(self, result: Result) -> None:
        if self.over:
            return
        self.usage = usage = result.usage
        if usage is not None:
            self.lease.input_tokens = usage.input_tokens
            if usage.output_tokens is not None:
                self.lease.output_tokens = usage.output_tokens
        self.result = result
        if self._waiter is not None:
            _wake(self._waiter)
        elif self._on_result is not None:
            self._loop.call_soon(self._on_result)

    def _take_chunks(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.bytes_in += len(data)
        if self._inflate is not None:
            try:
                data = self._inflate.feed(data)
            except (zlib.error, ValueError) as broken:
                self._resolve(protocol_fault(f"the backend's compressed body cannot be read: {broken}"))
        return data

    def _decode(self, encoding: bytes) -> bool:
        """We ask for identity; a backend that compresses all the same is decoded as it comes (H2)."""
        if encoding in COMPRESSIONS:
            self._inflate = Inflater(encoding)
        else:
            shown = encoding.decode("latin-1")
            self._resolve(
                protocol_fault(f"the backend used content-encoding {shown} though identity was asked for")
            )
            return False
        dropped = (b"content-encoding", b"content-length")
        self.headers = [(name, value) for name, value in self.headers if name not in dropped]
        return True


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
