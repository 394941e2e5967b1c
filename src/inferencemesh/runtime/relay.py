"""The relay of one stream: upstream bytes → complete events → the caller, inside `data_received` (contract C1 to C6).

No coroutine step happens here and nothing is scheduled. Each call takes what one read brought and makes at most one
write; it returns a `Result` when the stream is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inferencemesh.core.errors import MeshError
from inferencemesh.runtime.engines.base import Engine
from inferencemesh.runtime.verdict import Headers, Result, judge_in_band, protocol_fault
from inferencemesh.wire.chat import ChatTracker
from inferencemesh.wire.sse import EventTooLarge, Scanner


class Outlet(Protocol):
    """The caller's side, as an attempt sees it; the exchange implements it."""

    def begin(
        self, status: int, headers: Headers, first: bytes, *, length: int | None, whole: bool = False
    ) -> None:
        """Start the response with its first body bytes; with `whole` they are the last ones, too."""

    def write(self, block: bytes) -> None:
        """Pass complete events on."""

    def finish(self, last: bytes) -> None:
        """Pass the last bytes on and end the body properly."""

    @property
    def started(self) -> bool:
        """Whether the response head was written."""
        ...


class _Nobody:
    """The outlet of an attempt whose exchange is over: nothing goes anywhere."""

    __slots__ = ()

    def begin(
        self, status: int, headers: Headers, first: bytes, *, length: int | None, whole: bool = False
    ) -> None:
        """Nobody is told."""

    def write(self, block: bytes) -> None:
        """Nobody is told."""

    def finish(self, last: bytes) -> None:
        """Nobody is told."""

    @property
    def started(self) -> bool:
        """Nothing can start any more."""
        return True


NOBODY: Outlet = _Nobody()


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of an attempt, merged for the request's model; times in seconds, sizes in bytes."""

    stream: bool
    choices: int
    prefetch: str
    prefetch_max_s: float
    first_content_s: float
    idle_s: float
    total_s: float
    max_event_bytes: int
    strict_marker: bool


class StreamRelay:
    """One upstream stream on its way to the caller. `on_content` is called once, at the first content."""

    __slots__ = (
        "_engine",
        "_headers",
        "_held",
        "_held_bytes",
        "_on_content",
        "_outlet",
        "_plan",
        "_scanner",
        "_status",
        "content",
        "note",
        "tracker",
    )

    def __init__(
        self,
        plan: Plan,
        outlet: Outlet,
        tracker: ChatTracker,
        engine: Engine,
        status: int,
        headers: Headers,
        on_content: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._outlet = outlet
        self._engine = engine
        self._status = status
        self._headers = headers
        self._on_content = on_content
        self._scanner = Scanner(plan.max_event_bytes)
        self._held: list[bytes] = []  # preambles, until the response may start
        self._held_bytes = 0
        self.tracker = tracker
        self.content = False
        self.note: str | None = None
        if plan.prefetch == "off":
            self.begin()

    def begin(self) -> None:
        """Start the response without content: prefetching is off, or its limit has passed (C1)."""
        if not self._outlet.started:
            self._outlet.begin(self._status, self._headers, b"", length=None)

    def feed(self, data: bytes) -> Result | None:
        """Take what a read brought."""
        try:
            block = self._scanner.feed(data)
        except EventTooLarge as too_large:
            decided = self._pass(too_large.complete) if too_large.complete else None
            limit = self._plan.max_event_bytes
            return decided or protocol_fault(
                f"the backend sent an event larger than stream.max_event ({limit} bytes)"
            )
        return self._pass(block) if block else None

    def end(self, data: bytes) -> Result:
        """The body ended cleanly: a success only with a completion signal before it (C3)."""
        decided = self.feed(data) if data else None
        if decided is not None:
            return decided
        tracker = self.tracker
        tail = self._scanner.tail.rstrip(b"\r\n")
        if tail and not tracker.complete:
            # Some servers end the body right after the marker's line. A whole event may not be lost for want of its
            # blank line; anything else is an incomplete event and is dropped (C6).
            probe = ChatTracker(1)
            probe.feed(tail + b"\n\n")
            if probe.marker:
                self.note = "blank_line_missing"
                return self._pass(tail + b"\n\n") or Result()
        if tracker.complete and not self._plan.strict_marker:
            return self.complete()
        if tracker.complete:
            message = "the backend ended its stream without [DONE], and stream.strict_marker is set"
        else:
            message = "the backend ended its stream before the answer was complete"
        return Result(MeshError("upstream_incomplete", message), "upstream_incomplete", fault=True)

    def complete(self, last: bytes = b"") -> Result:
        """The answer is whole: its last bytes and the end of the body leave in one write."""
        if self._held:
            self._held.append(last)
            last = b"".join(self._held)
            self._held.clear()
        if self._outlet.started:
            self._outlet.finish(last)
        else:
            self._outlet.begin(self._status, self._headers, last, length=None, whole=True)
        return Result(usage=self.tracker.usage)

    def _pass(self, block: bytes) -> Result | None:
        tracker = self.tracker
        allowed = tracker.feed(block)
        if allowed != len(block):
            block = block[:allowed]
        if tracker.content and not self.content:
            self.content = True
            self._on_content()
        if tracker.error is not None:
            if self.content:
                self._emit(block)
            return judge_in_band(self._engine, tracker.error, self._headers)
        if tracker.marker:
            return self.complete(block)
        return self._emit(block)

    def _emit(self, block: bytes) -> Result | None:
        """Relay, or hold while the response may not start yet (C1)."""
        if self.content or self._plan.prefetch != "first_content":
            if self._held:
                self._held.append(block)
                block = b"".join(self._held)
                self._held.clear()
            if self._outlet.started:
                self._outlet.write(block)
            elif block:
                self._outlet.begin(self._status, self._headers, block, length=None)
            return None
        self._held.append(block)
        self._held_bytes += len(block)
        if self._held_bytes > self._plan.max_event_bytes:
            return protocol_fault("the backend sent more than stream.max_event bytes before any content")
        return None
