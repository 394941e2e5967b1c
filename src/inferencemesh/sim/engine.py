"""The simulated engine: admission, running work, and the books that `/sim/state` shows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferencemesh.sim.clock import Clock
from inferencemesh.sim.cutter import Cutter
from inferencemesh.sim.job import Job
from inferencemesh.sim.records import History, Record, State
from inferencemesh.sim.reply import JSON_HEADERS
from inferencemesh.sim.request import ChatCall, RequestError, error_body
from inferencemesh.sim.script import Fault, Script
from inferencemesh.sim.slots import Slots

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.responder import Responder

_BODIES_REMEMBERED = 10_000  # for `times=`


class Engine:
    """Slots, a bounded queue, the clock, and every job alive. All methods are synchronous."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        slots: int,
        queue: int,
        seed: int,
        models: Sequence[str],
        script: Script,
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.models: dict[str, None] = dict.fromkeys(models)
        self.clock = Clock(loop)
        self.history = History()
        self.script = script
        self._first_script = script
        self._slots: Slots[Job] = Slots(slots, queue)
        self._jobs: set[Job] = set()
        self._starting: deque[Job] = deque()
        self._in_start = False
        self._epoch_at = loop.time()
        self.connections_open = 0  # kept by the server in front
        self.connections_opened = 0
        self._faults_seen: dict[bytes, int] = {}

    def submit(self, call: ChatCall, responder: Responder, cutter: Cutter, record: Record) -> None:
        """Take a valid request: it starts, waits, or is answered with 429.

        Raises RequestError when the request is wider than the engine.
        """
        if call.choices > self._slots.slots:
            raise RequestError(
                400, f"n={call.choices} is more than the {self._slots.slots} slots of this engine", "n"
            )
        record.model = call.model
        record.stream = call.stream
        record.width = call.choices
        fault = self._fault_of(call)
        if fault is not None and fault.kind == "full":
            self._refuse(responder, record, call.script.retry_after)
            return
        job = Job(self, call, fault, responder, cutter, record)
        verdict = self._slots.offer(job, job.width)
        if verdict == "full":
            job.ended = True
            self._refuse(responder, record, None)
            return
        self._jobs.add(job)
        if verdict == "start":
            self._start([job])

    def finished(self, job: Job, state: State) -> None:
        """A job has ended: free what it held, and start those that it stood in the way of."""
        totals = self.history.totals
        job.record.state = state
        job.record.ended_at = self.loop.time()
        self._jobs.discard(job)
        if state == "completed":
            totals.completed += 1
        elif state == "failed":
            totals.failed += 1
        else:
            totals.aborted += 1
            totals.aborted_waiting += not job.running
        self._start(self._slots.release(job.width) if job.running else self._slots.leave(job))

    def reset(self) -> None:
        """As freshly started: breaks every connection at work; no records, counters, script or pause."""
        for job in tuple(self._jobs):
            job.abandon()
        self._jobs.clear()
        self.clock.clear()
        self.clock.resume()
        self._slots.clear()
        self.history.clear()
        self._faults_seen.clear()
        self.script = self._first_script
        self.connections_opened = 0
        self._epoch_at = self.loop.time()

    def state(self, *, requests: bool = True, only: str | None = None) -> dict[str, object]:
        """The books, as a document for JSON. `only` names one x-request-id."""
        totals = self.history.totals
        running = [job for job in self._jobs if job.running]
        lingering = [job for job in self._jobs if job.record.lingering]
        document: dict[str, object] = {
            "seed": self.seed,
            "models": list(self.models),
            "slots": self._slots.slots,
            "queue": self._slots.queue,
            "paused": self.clock.paused,
            # The epoch on the machine's monotonic clock, so that instants of other processes compare.
            "epoch_at": self._epoch_at,
            "at_ms": round((self.loop.time() - self._epoch_at) * 1000.0, 1),
            "connections": self.connections_opened,
            "connections_open": self.connections_open,
            "running": self._slots.running,
            "running_requests": len(running),
            "waiting": self._slots.waiting,
            "lingering": sum(job.width for job in lingering if job.running),
            "peak_running": self._slots.peak_running,
            "peak_waiting": self._slots.peak_waiting,
            "received": totals.received,
            "started": totals.started,
            "completed": totals.completed,
            "failed": totals.failed,
            "aborted": totals.aborted,
            "aborted_waiting": totals.aborted_waiting,
            "refused": totals.refused,
            "invalid": totals.invalid,
            "tokens_made": totals.tokens_made,
        }
        if requests:
            documents = self.history.documents(self._epoch_at, only)
            document["ids"] = list(documents)
            document["requests"] = documents
        return document

    def _start(self, jobs: list[Job]) -> None:
        # A job may end within its own start and so start others: a loop here, or a long line of short
        # answers would be a deep recursion.
        self._starting.extend(jobs)
        if self._in_start:
            return
        self._in_start = True
        try:
            while self._starting:
                self.history.totals.started += 1
                self._starting.popleft().start()
        finally:
            self._in_start = False

    def _refuse(self, responder: Responder, record: Record, retry_after: str | None) -> None:
        self.history.totals.refused += 1
        record.state = "refused"
        record.ended_at = self.loop.time()
        headers = list(JSON_HEADERS)
        if retry_after is not None:
            headers.append((b"retry-after", retry_after.encode()))
        message = "The engine is currently busy and cannot accept new requests. Please try again later."
        responder.send(429, headers, error_body(429, message))

    def _fault_of(self, call: ChatCall) -> Fault | None:
        """The fault that comes this time: `times=N` lets the first N of the same body fail."""
        script = call.script
        if script.fault is None or script.times is None:
            return script.fault
        seen = self._faults_seen.pop(call.digest, 0)
        self._faults_seen[call.digest] = seen + 1
        if len(self._faults_seen) > _BODIES_REMEMBERED:
            del self._faults_seen[next(iter(self._faults_seen))]
        return script.fault if seen < script.times else None
