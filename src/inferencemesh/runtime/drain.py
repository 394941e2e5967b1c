"""The owner of draining slots: what happens between our end of a request and the backend's (contract B5).

A closed connection is not a stopped generation. Each drain keeps its lease until there is evidence:

- `ended`: the backend finished its response after all;
- `grace`: the peer has closed its side too, and the configured grace has passed since;
- `reported`: the engine's own word for this very attempt (`confirm`);
- `trust`: the policy asks for no evidence;
- `limit`: the longest time that the request may have been worked on (`timeouts.total` from its sending) has passed:
  the policy `worst_case`, a peer that did not close within `cleanup`, an engine that did not say so under `confirm`
  (it has the time of a cleanup to say it, also where the request ended only at its limit).

On plain TCP we close our half first and wait for the peer's own close, which says that its HTTP layer has seen
ours. Nothing is freed for age alone; an old drain is counted and alarmed instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from inferencemesh.core.events import CleanupOverdue, Event
from inferencemesh.core.request import Lease
from inferencemesh.runtime.gate import Gate
from inferencemesh.runtime.http1.client import ClientConnection, UpstreamLost
from inferencemesh.runtime.probes import fetch
from inferencemesh.runtime.upstream import Upstream

# How often an engine is asked whether it has stopped, while there is somebody to ask about; seconds.
ASK_EVERY_S = 0.1
ASK_TIMEOUT_S = 2.0
_FRESH_S = ASK_TIMEOUT_S + 2 * ASK_EVERY_S  # for which an answer that it goes on counts


class Drain:
    """One draining lease."""

    __slots__ = (
        "_asking",
        "_drains",
        "_timer",
        "_working_at",
        "attempt_id",
        "closed",
        "conn",
        "lease",
        "limit_at",
        "overdue",
        "since",
        "state",
        "upstream",
    )

    def __init__(
        self,
        drains: Drains,
        lease: Lease,
        conn: ClientConnection | None,
        upstream: Upstream,
        now: float,
        limit_at: float,
        attempt_id: str,
    ) -> None:
        self._drains = drains
        self.attempt_id = attempt_id
        self._asking: asyncio.Task[None] | None = None
        self.lease = lease
        self.conn = conn
        self.upstream = upstream
        self.since = now
        self.limit_at = limit_at
        self.state = "closing"
        self.closed = False  # the peer has closed its side
        self.overdue = False
        self._working_at: float | None = None  # when the engine said last that it goes on
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tell the backend to stop, and begin to wait for its evidence."""
        settings = self.upstream.drain
        if settings.policy == "trust":
            self.finish("trust")
            return
        if settings.policy == "confirm":
            self._asking = self._drains.loop.create_task(self._ask())
        if self.conn is None:
            self._until_limit()
        else:
            self._after(settings.cleanup_s, self._not_closed)
            self.conn.half_close(self._peer_closed, on_end=self._ended)

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._drains.loop.call_later(delay_s, then)

    def _ended(self) -> None:
        self.finish("ended")

    def _peer_closed(self) -> None:
        self.closed = True
        if self.state != "closing":
            return
        settings = self.upstream.drain
        if settings.policy in ("worst_case", "confirm"):
            self._until_limit()
        elif settings.grace_s <= 0:
            self.finish("grace")
        else:
            self.state = "grace"
            self._after(settings.grace_s, self._grace_over)

    def _grace_over(self) -> None:
        self.finish("grace")

    def _not_closed(self) -> None:
        """The peer kept its side open: from here only the longest time is sure."""
        self._drains.emit(CleanupOverdue(self.upstream.name))
        self._until_limit()
        if self.conn is not None:
            self.conn.abort()

    def _until_limit(self) -> None:
        self.state = "limit"
        now, settings = self._drains.loop.time(), self.upstream.drain
        least_s = settings.grace_s
        if settings.policy == "confirm":
            least_s = max(least_s, self.since + settings.cleanup_s - now)
        self._after(max(self.limit_at - now, least_s), self._limit_over)

    def _limit_over(self) -> None:
        """The end of patience; but no time speaks against an engine that says that it goes on (A1)."""
        working_at = self._working_at
        if working_at is not None and self._drains.loop.time() - working_at <= _FRESH_S:
            self._after(ASK_EVERY_S, self._limit_over)
        else:
            self.finish("limit")

    async def _ask(self) -> None:
        """Ask the engine until it says that it has stopped. What it does not say is no evidence (B5)."""
        engine = self.upstream.engine
        path = engine.confirm_path(self.attempt_id)
        while path is not None:
            # An id that the engine does not know may still be on its way to it, unless it had closed its side already
            # when it was asked: meanwhile it may have begun.
            closed = self.closed
            try:
                status, body = await fetch(self.upstream, path, ASK_TIMEOUT_S)
                stopped = engine.stopped(status, body, self.attempt_id, closed=closed)
                if stopped:
                    self.finish("reported")
                    return
                if stopped is not None:
                    self._working_at = self._drains.loop.time()
            except (OSError, UpstreamLost, TimeoutError, ValueError, KeyError, TypeError):
                pass  # no answer: ask again
            await asyncio.sleep(ASK_EVERY_S)

    def finish(self, evidence: str) -> None:
        """Give the slots back, once."""
        if self.state == "done":
            return
        self.state = "done"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None:
            self._drains.leave(self._asking)
            self._asking = None
        self._drains.forget(self)
        try:
            self._drains.gate.confirm(self.lease, evidence)
        finally:
            if self.conn is not None:
                self.conn.abort()


class Drains:
    """All drains of the process. `adopt` is synchronous: from its return on the lease has an owner."""

    def __init__(
        self,
        gate: Gate,
        loop: asyncio.AbstractEventLoop,
        *,
        emit: Callable[[Event], None],
        alarm: Callable[[Drain, float], None],
    ) -> None:
        self.gate = gate
        self.loop = loop
        self.emit = emit
        self._alarm = alarm
        self._open: set[Drain] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def adopt(
        self,
        lease: Lease,
        conn: ClientConnection | None,
        upstream: Upstream,
        *,
        limit_at: float,
        attempt_id: str,
    ) -> None:
        """Take over a lease whose request we ended; its slots are draining from here on.

        `limit_at` is the instant until which the backend may go on in the worst case: the model's `timeouts.total`
        after the request was sent, however short the caller's own deadline was. Without a connection nothing can be
        seen of the backend's end, and that limit decides.
        """
        self.gate.drain(lease)
        drain = Drain(self, lease, conn, upstream, self.loop.time(), limit_at, attempt_id)
        self._open.add(drain)
        drain.start()

    def forget(self, drain: Drain) -> None:
        """A drain is over."""
        self._open.discard(drain)
        if drain.overdue and not any(d.overdue and d.upstream is drain.upstream for d in self._open):
            drain.upstream.degraded = None
        if not self._open and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def leave(self, task: asyncio.Task[None]) -> None:
        """A question that needs no answer any more: cancelled, and awaited at the latest by `close`."""
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        if task is not asyncio.current_task():
            task.cancel()

    def sweep(self, now: float) -> None:
        """Count and alarm what is unconfirmed for too long; it is not freed by that."""
        for drain in self._open:
            if not drain.overdue and now - drain.since >= drain.upstream.drain.overdue_s:
                drain.overdue = True
                drain.upstream.degraded = "drain_overdue"
                self._alarm(drain, now - drain.since)

    async def close(self, within_s: float) -> int:
        """Wait for open drains up to a bound; then give up their connections. Returns how many were abandoned."""
        if self._open and within_s > 0:
            self._idle = self.loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle, within_s)
        abandoned = list(self._open)
        for drain in abandoned:
            drain.finish("shutdown")
        await asyncio.gather(*self._leaving, return_exceptions=True)
        return len(abandoned)
