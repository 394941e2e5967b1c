"""One accepted request: waits, gets its slots, makes tokens by the clock, and ends once.

Token k is due at start + first + k * interval, whatever the delays before it were. A disconnect stops the
work at once, unless the script makes this engine one that lingers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferencemesh.sim.clock import SLACK_S, Timer
from inferencemesh.sim.cutter import Cutter
from inferencemesh.sim.generate import Answer
from inferencemesh.sim.records import Record, State
from inferencemesh.sim.reply import JSON_HEADERS, PlainReply, Reply, StreamReply
from inferencemesh.sim.request import ChatCall, error_body
from inferencemesh.sim.script import Fault

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.responder import Responder
    from inferencemesh.sim.engine import Engine


class Job:
    """The work of one request. `Engine` owns it and gives it its slots."""

    __slots__ = (
        "_answer",
        "_comment_timer",
        "_cutter",
        "_due_from",
        "_engine",
        "_fault",
        "_limit",
        "_linger_timer",
        "_made",
        "_reply",
        "_responder",
        "_timer",
        "ended",
        "record",
        "running",
        "width",
    )

    def __init__(
        self,
        engine: Engine,
        call: ChatCall,
        fault: Fault | None,
        responder: Responder,
        cutter: Cutter,
        record: Record,
    ) -> None:
        self._engine = engine
        self._responder = responder
        self._cutter = cutter
        self._fault = fault
        self._answer = answer = Answer(call, engine.seed)
        self.record = record
        self.width = call.choices
        self.running = False
        self.ended = False
        self._made = 0
        self._due_from = 0.0
        self._timer: Timer | None = None
        self._linger_timer: Timer | None = None
        self._comment_timer: Timer | None = None
        self._limit = answer.tokens
        if fault is not None and fault.where in ("headers", "first"):
            self._limit = 0
        elif fault is not None and fault.where == "after":
            if fault.after > answer.tokens:
                self._fault = None  # max_tokens ends the answer before the fault would come
            else:
                self._limit = fault.after
        loop = engine.loop
        self._reply: Reply
        if call.stream:
            self._reply = StreamReply(responder, cutter, answer, record, loop)
        else:
            self._reply = PlainReply(responder, cutter, answer, record, loop, self._fault)
        responder.listen(
            on_departure=self._on_departure, on_pause=self._reply.pause, on_resume=self._reply.resume
        )

    def start(self) -> None:
        """The slots were got."""
        clock = self._engine.clock
        self.running = True
        self.record.state = "running"
        self.record.started_at = self._engine.loop.time()
        self._due_from = clock.now()
        every_s = self._answer.script.comments_every_s
        if every_s:
            self._comment_timer = clock.at(self._due_from + every_s, self._comment)
        if not clock.paused and self._next_due() <= clock.now() + SLACK_S:
            self._tick()
            return
        if self._fault is None or self._fault.where != "headers":
            self._reply.open()
        self._timer = clock.at(self._next_due(), self._tick)

    def abandon(self) -> None:
        """The server forgets everything: break the connection, report nothing."""
        self.ended = True
        self._stop_timers()
        self._reply.forget()
        self._cutter.now(reset=True)

    def _next_due(self) -> float:
        if self._limit == 0:  # no token: the end, or the fault, comes when the first one would
            return self._due_from + self._answer.script.first_s
        return self._due_from + self._answer.due_s(self._made)

    def _tick(self) -> None:
        self._timer = None
        now = self._engine.clock.now() + SLACK_S
        made = self._made
        answer = self._answer
        while made < self._limit and self._due_from + answer.due_s(made) <= now:
            made += 1
        if made != self._made:
            new = (made - self._made) * self.width
            self.record.tokens += new
            self._engine.history.totals.tokens_made += new
            self._made = made
        if made >= self._limit:
            self._conclude()
        else:
            self._reply.advance(made)
            self._timer = self._engine.clock.at(self._next_due(), self._tick)

    def _conclude(self) -> None:
        """All that will be made has been made. Slots are given back before the caller can see the end."""
        fault = self._fault
        if fault is not None and fault.kind == "hang":
            if fault.where != "headers":
                self._reply.conclude(self._made, fault)
            return
        if fault is not None and fault.where == "headers":
            self._reply.forget()
            self._end("failed")
            self._fail_before_head(fault)
            return
        self._end("completed" if fault is None else "failed")
        self._reply.conclude(self._made, fault)

    def _fail_before_head(self, fault: Fault) -> None:
        if self._responder.departed:
            return
        if fault.kind == "status":
            script = self._answer.script
            headers = list(JSON_HEADERS)
            if script.retry_after is not None:
                headers.append((b"retry-after", script.retry_after.encode()))
            message = f"The engine failed with {script.status} (asked for by the script)."
            self._responder.send(script.status, headers, error_body(script.status, message))
        else:
            self._cutter.after_delivery(reset=fault.kind == "cut")

    def _comment(self) -> None:
        self._comment_timer = None
        self._reply.comment()
        if not self.ended:
            clock = self._engine.clock
            self._comment_timer = clock.at(clock.now() + self._answer.script.comments_every_s, self._comment)

    # The caller goes away.

    def _on_departure(self) -> None:
        self._reply.forget()
        if self.record.left_at is not None:
            return
        if not self.ended:
            self.record.left_at = self._engine.loop.time()
            # A stopped engine does not notice either: this comes once its time goes on.
            clock = self._engine.clock
            if clock.paused:
                self._linger_timer = clock.at(clock.now(), self._departed)
            else:
                self._departed()

    def _departed(self) -> None:
        script = self._answer.script
        self._linger_timer = None
        if self.ended:
            return
        if script.ignore_disconnect:
            self.record.lingering = True
        elif script.linger_s:
            self.record.lingering = True
            clock = self._engine.clock
            self._linger_timer = clock.at(clock.now() + script.linger_s, self._abort)
        else:
            self._abort()

    def _abort(self) -> None:
        if not self.ended:
            self._end("aborted")

    def _end(self, state: State) -> None:
        self.ended = True
        self._stop_timers()
        self.record.lingering = False
        self._engine.finished(self, state)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._linger_timer, self._comment_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._linger_timer = self._comment_timer = None
