"""Writes an answer to its connection, as far as it has been made and as fast as the caller takes it.

The engine's work and the writing are two things, as in real engines: the engine goes on making tokens while
a slow reader takes none. Since a token's bytes are computed when they are written, nothing piles up here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from inferencemesh.sim.cutter import Cutter
from inferencemesh.sim.generate import Answer, pieces
from inferencemesh.sim.records import Record
from inferencemesh.sim.script import Fault

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.responder import Responder

Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [(b"content-type", b"application/json")]
_SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]
_BATCH_BYTES = 64 * 1024


class Reply(Protocol):
    """How a job hands its progress over to the connection."""

    def open(self) -> None:
        """The slot was got, the first token is not due yet."""

    def advance(self, made: int) -> None:
        """So many tokens were made."""

    def conclude(self, made: int, fault: Fault | None) -> None:
        """No token will follow: the natural end, or the fault."""

    def comment(self) -> None:
        """A sign of life, if one can be given now."""

    def pause(self) -> None:
        """The caller's connection takes no more."""

    def resume(self) -> None:
        """The caller's connection takes bytes again."""

    def forget(self) -> None:
        """The caller is gone: write nothing more."""


class StreamReply:
    """Server-sent events."""

    def __init__(
        self,
        responder: Responder,
        cutter: Cutter,
        answer: Answer,
        record: Record,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._responder = responder
        self._cutter = cutter
        self._answer = answer
        self._script = answer.script
        self._record = record
        self._loop = loop
        self._made = 0
        self._sent = 0
        self._role_sent = False
        self._concluded = False
        self._fault: Fault | None = None
        self._complete = False  # everything that will be written has been taken from the answer
        self._over = False
        self._pieces: deque[bytes] = deque()

    def open(self) -> None:
        """Send the head, and under `early_role` the role chunk."""
        if self._script.early_role:
            self._role_sent = True
            self._put([self._answer.role()])
        else:
            self._write(b"")

    def advance(self, made: int) -> None:
        """Write the tokens up to `made`."""
        self._made = made
        self._pump()

    def conclude(self, made: int, fault: Fault | None) -> None:
        """Write the tokens up to `made` and the end."""
        self._made = made
        self._concluded = True
        self._fault = fault
        self._pump()

    def comment(self) -> None:
        """Write a comment between two events, if the stream is open and the caller reads."""
        if self._responder.started and not (self._over or self._responder.paused or self._pieces):
            self._put([self._answer.comment()])

    def pause(self) -> None:
        """Nothing to do: `Responder.paused` is looked at before each write."""

    def resume(self) -> None:
        """Write on."""
        if self._pieces:
            self._next_piece()
        else:
            self._pump()

    def forget(self) -> None:
        """Write nothing more."""
        self._over = True
        self._pieces.clear()

    def _pump(self) -> None:
        while not (self._over or self._complete or self._pieces or self._responder.paused):
            if self._sent == self._made and not self._concluded:
                return
            events, complete = self._take()
            self._complete = complete
            if complete and not self._script.split:
                self._end(b"".join(events))
            elif events:
                self._put(events)
            else:  # split, and nothing is left to write
                self._end(b"")

    def _take(self) -> tuple[list[bytes], bool]:
        """The next events that may be written, about 64 KiB of them, and whether they are the last."""
        events: list[bytes] = []
        size = 0
        answer = self._answer
        at_first = self._fault is not None and self._fault.where == "first"
        if not self._role_sent and (self._made or (self._concluded and not at_first)):
            self._role_sent = True
            events.append(answer.role())
        while self._sent < self._made and size < _BATCH_BYTES:
            if self._script.comments:
                events.append(answer.comment())
            event = answer.step(self._sent)
            self._sent += 1
            size += len(event)
            events.append(event)
        complete = self._concluded and self._sent == self._made
        if complete:
            events.extend(self._last())
        return events, complete

    def _last(self) -> list[bytes]:
        answer = self._answer
        if self._fault is None:
            last = [answer.finish(), answer.usage(), answer.done()]
        else:
            last = [answer.finish() if self._fault.where == "finish" else b""]
            if self._fault.kind == "error":
                last.append(answer.error())
        return [event for event in last if event]

    def _put(self, events: list[bytes]) -> None:
        if not self._script.split:
            self._write(b"".join(events))
            return
        for event in events:
            self._pieces.extend(pieces(event, self._script.split))
        if not self._responder.started:
            self._write(b"")
        self._loop.call_soon(self._next_piece)

    def _next_piece(self) -> None:
        if self._over or self._responder.paused or not self._pieces:
            return
        self._write(self._pieces.popleft())
        if self._pieces:
            self._loop.call_soon(self._next_piece)
        elif self._complete:
            self._end(b"")
        else:
            self._pump()

    def _write(self, data: bytes) -> None:
        if data and self._record.first_byte_at is None:
            self._record.first_byte_at = self._loop.time()
        if not self._responder.started:
            self._responder.start(200, _SSE_HEADERS, length=None, first=data)
        elif data:
            self._responder.write(data)

    def _end(self, last: bytes) -> None:
        kind = None if self._fault is None else self._fault.kind
        if kind == "hang":
            self._write(last)  # and nothing more; comments may still come
            return
        self._over = True
        if kind in ("cut", "drop"):
            self._write(last)
            self._cutter.after_delivery(reset=kind == "cut")
        elif self._responder.started:
            if last and self._record.first_byte_at is None:
                self._record.first_byte_at = self._loop.time()
            self._responder.finish(last)
        else:
            self._write(last)
            self._responder.finish()


class PlainReply:
    """One JSON document at the end. Its faults are truncations of that document."""

    def __init__(
        self,
        responder: Responder,
        cutter: Cutter,
        answer: Answer,
        record: Record,
        loop: asyncio.AbstractEventLoop,
        fault: Fault | None,
    ) -> None:
        self._responder = responder
        self._cutter = cutter
        self._answer = answer
        self._record = record
        self._loop = loop
        self._head_first = fault is not None and fault.where == "first" and fault.kind != "error"
        self._chunked = fault is not None and fault.kind == "end"
        self._over = False

    def open(self) -> None:
        """Send the head early where the fault needs one without a body."""
        if self._head_first and not self._over:
            self._start(b"", len(self._answer.plain()))

    def advance(self, made: int) -> None:
        """Nothing is written before the end."""

    def conclude(self, made: int, fault: Fault | None) -> None:
        """Write the document, or as much of it as the fault leaves."""
        if self._over:
            return
        self._over = True
        if fault is None or fault.kind == "error":
            body = self._answer.plain() if fault is None else self._answer.error_document()
            self._record.first_byte_at = self._loop.time()
            self._responder.send(200, JSON_HEADERS, body)
            return
        body = self._answer.plain()
        part = {"first": b"", "after": body[: len(body) // 2], "finish": body[:-1]}[fault.where]
        if not self._responder.started:
            self._start(part, len(body))
        if fault.kind == "end":
            self._responder.finish()
        elif fault.kind in ("cut", "drop"):
            self._cutter.after_delivery(reset=fault.kind == "cut")

    def comment(self) -> None:
        """A document has no comments."""

    def pause(self) -> None:
        """Nothing to do: there is one write."""

    def resume(self) -> None:
        """Nothing to do: there is one write."""

    def forget(self) -> None:
        """Write nothing more."""
        self._over = True

    def _start(self, part: bytes, length: int) -> None:
        if part:
            self._record.first_byte_at = self._loop.time()
        self._responder.start(200, JSON_HEADERS, length=None if self._chunked else length, first=part)
