"""One request from its validated body to its settled outcome (contract B1, B2).

A request with a slot and a connection at hand is sent on at once and has no task; one that must wait for anything but
its answer walks `core.phase` in a task. No coroutine step happens per relayed event. All cleanup is synchronous and
idempotent (`finalize`), runs whatever fails wherever, and runs even if the task was cancelled before its first step.
What needs I/O after that (waiting for a backend to stop) belongs to `drain.Drains`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from inferencemesh.core.errors import MeshError
from inferencemesh.core.events import Retried
from inferencemesh.core.outcome import CLIENT_GONE, OK, SEND_TIMEOUT, SHUTDOWN, Outcome, Phase
from inferencemesh.core.phase import Step, advance
from inferencemesh.core.request import Lease, LeaseState, Request, RequestState
from inferencemesh.runtime.attempt import Attempt
from inferencemesh.runtime.caller import CallerSide
from inferencemesh.runtime.http1.responder import Responder
from inferencemesh.runtime.http1.server import IncomingRequest
from inferencemesh.runtime.record import ended_event
from inferencemesh.runtime.services import Services
from inferencemesh.runtime.settings import ModelSettings
from inferencemesh.runtime.upstream import attempt_id
from inferencemesh.runtime.verdict import Result
from inferencemesh.wire.fields import forward_request_headers
from inferencemesh.wire.peek import Peek, replace_model
from inferencemesh.wire.sse import KEEPALIVE

# A backend that refuses connections is always the least busy one. Where the model has others it is left alone for
# this long, about one health interval, so that it does not draw (and use up the retries of) every request meanwhile.
CONNECT_QUIET_S = 5.0

_DONE: Final = Outcome(Phase.COMPLETE, OK)


class Exchange(CallerSide):
    """See the module. Made by the app after `Gate.offer` took the request in; owned by `Services.live`."""

    __slots__ = (
        "_cause",
        "_failed",
        "_finalized",
        "_forced",
        "_handed_over",
        "_peek",
        "_stage",
        "attempts",
        "detail",
        "task",
        "trace",
    )

    def __init__(
        self,
        services: Services,
        incoming: IncomingRequest,
        responder: Responder,
        request: Request,
        peek: Peek,
        settings: ModelSettings,
        trace: bytes | None = None,
    ) -> None:
        super().__init__(services, incoming, responder, request, settings, stream=peek.stream)
        self._peek = peek
        self.trace = trace
        self.attempts = 0
        self._handed_over = False  # the whole answer was given to the responder, and the breaker told
        self._forced: tuple[MeshError, str] | None = None
        self._failed: Exception | None = None  # what went wrong without a task: the task begins with it
        self._cause: str | None = None
        self._stage: str | None = None
        self.detail: str | None = (
            None  # for the operator's log; never an upstream's own text, which may hold a prompt
        )
        self._finalized = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; from here on the exchange owns request, response and, once granted, the lease."""
        services = self._services
        services.live.add(self)
        try:
            self.responder.listen(
                on_departure=self._departed, on_pause=self._caller_stalled, on_resume=self._caller_reads
            )
            if not self._set_out():
                self._follow()
        except BaseException:
            self.finalize("internal")
            raise

    def _set_out(self) -> bool:
        """Send the request at once where slot and connection are at hand, and make no task: most need none.

        Who has to wait for anything but the backend's answer (a place in the line, a connection, another attempt, the
        rest of the answer's way) gets one later, by `_follow`.
        """
        lease = self.request.lease
        if lease is None:
            return False
        conn = self._services.upstreams[lease.backend.name].pool.take()
        if conn is None:
            return False
        try:
            attempt = self._begin_attempt(lease)
        except BaseException:
            conn.release()
            raise
        attempt.notify(self._attempt_done)
        try:
            attempt.send(conn, self._payload)
        except Exception as bug:
            self._failed = bug
            return False
        return True

    def _follow(self) -> None:
        """Go on in a task."""
        self.task = self._services.loop.create_task(self.run())
        # A task that is cancelled before its first step never enters its `finally`.
        self.task.add_done_callback(self._task_done)

    def _attempt_done(self) -> None:
        """The attempt that was made without a task is over. The usual end is taken here, a step from `finalize`."""
        attempt = self.attempt
        if self.task is not None or self._finalized or attempt is None or attempt.result is None:
            return
        if attempt.ended and attempt.result.ok and self._forced is None:
            try:
                self._hand_over(attempt)
                if not self.responder.unsent_bytes() and not self.responder.departed:
                    self.finalize(OK)
                    return
            except Exception as bug:
                self._failed = bug
        self._follow()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            bug = task.exception()
            if bug is not None:
                self._services.bug("an exchange ended with an exception", bug)
        self.finalize(self._cause or self._cancel_cause())

    # --- the walk ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The whole life; every way out passes `finalize`."""
        try:
            self._cause = await self._serve()
        except asyncio.CancelledError:
            self._cause = self._cancel_cause()
            if self._forced is not None and not self.responder.departed:
                self._answer(self._forced[0])
            raise
        except MeshError as error:
            self._cause = error.code
            detail = error.details.get("detail")
            self.detail = str(detail) if detail is not None else None
            if self._forced is not None and self._forced[0] is error:
                self._cause = self._forced[1]
            self._answer(error)
            error.__traceback__ = None  # of frames that know the exchange, by whose attempt the error is kept
        except Exception as bug:
            self._cause = "internal"
            self._services.bug("an exchange failed", bug)
            self._answer(MeshError("internal", f"the gateway failed; its log has request {self.request.id}"))
        finally:
            self.finalize(self._cause or "internal")

    async def _serve(self) -> str:
        services, request = self._services, self.request
        if self._failed is not None:
            raise self._failed
        attempt = self.attempt
        if attempt is None:
            if request.lease is None:
                self.step = advance(self.step, Step.WAITING)
            attempt = self._begin_attempt(await services.gate.granted(request))
        while True:
            try:
                left = request.deadline_at - services.loop.time()
                result = await attempt.run(
                    self._payload, connect_within_s=max(0.001, min(self._settings.connect_s, left))
                )
                if result.ok:
                    return await self._deliver(attempt)
                self._account(attempt, result)
                self._back_to_the_line(attempt, result)
            finally:
                attempt.close()
            attempt = self._begin_attempt(await self._granted_again(result))

    def _begin_attempt(self, lease: Lease) -> Attempt:
        services = self._services
        if not self.responder.started:
            self.step = advance(self.step, Step.GRANTED)
        upstream = services.upstreams[lease.backend.name]
        attempt = self.attempt = Attempt(
            upstream,
            lease,
            self._settings.plan(stream=self.stream, choices=self._peek.choices),
            self,
            attempt_id=attempt_id(services.rng),
            gate=services.gate,
            drains=services.drains,
            held_budget=services.held_budget,
            loop=services.loop,
        )
        self.attempts += 1
        upstream.attempts += 1
        return attempt

    def _hand_over(self, attempt: Attempt) -> None:
        """The answer is complete: give the responder what it does not have yet, and tell the breaker. Idempotent.

        Raises:
            MeshError: a plain answer, after the stream had started.
        """
        if self._handed_over:
            return
        responder = self.responder
        if not responder.finished:
            status, headers, body = attempt.take_plain()
            if responder.started:
                # An earlier attempt's silence, or its preamble, has started the stream (C1): a plain answer now can
                # only be told as a failure in it.
                self._account_ok(attempt)
                raise MeshError(
                    "upstream_error", f"the backend answered {status} after the stream had started"
                )
            self.step = advance(self.step, Step.ATTEMPT) if self.step is Step.GRANTED else self.step
            self.step = advance(self.step, Step.COMMITTED)
            self.status = status
            responder.send(status, self._response_headers(headers, sse=False), body)
            self.phase = Phase.COMPLETE
        self._handed_over = True
        self._account_ok(attempt)

    async def _deliver(self, attempt: Attempt) -> str:
        """The answer is complete. The slot ends with the backend's end, the response when the caller has it (B1)."""
        self._hand_over(attempt)
        responder = self.responder
        if not attempt.ended:
            await attempt.backend_end(self._settings.cleanup_s)
        if responder.unsent_bytes() or responder.departed or self._forced is not None:
            attempt.forget_body()
            try:
                await responder.flushed()
            except ConnectionError:
                return self._cancel_cause()
        return OK

    def _back_to_the_line(self, attempt: Attempt, result: Result) -> None:
        """Back to the head of the line: for “full” (B6) or another attempt (A9). Else the failure is final.

        Raises:
            MeshError: it is final.
        """
        services, request, upstream = self._services, self.request, attempt.upstream
        if self._forced is not None:
            raise self._forced[0]
        full = result.full and not self._body_sent
        error = result.error or MeshError("upstream_error", "the backend refused the request as full")
        if not full and (
            self._body_sent
            or result.reason not in self._settings.retry_on
            or not services.gate.may_retry(request, str(result.reason))
        ):
            raise error
        services.emit(Retried(upstream.name, "full" if full else str(result.reason)))
        if full:
            self.attempts -= 1
            if not attempt.ended:
                attempt.close()
        else:
            attempt.close()
        if not self.responder.started:
            self.step = advance(self.step, Step.WAITING)
        not_before_s = result.not_before_s
        if result.reason == "connect" and len(self._settings.backends) > 1:
            not_before_s = CONNECT_QUIET_S
        services.gate.requeue(attempt.lease, full=full, avoid=not full, not_before_s=not_before_s)

    async def _granted_again(self, result: Result) -> Lease:
        try:
            return await self._services.gate.granted(self.request)
        except MeshError as lost:
            if result.error is not None:
                # The attempt's failure says more than the second wait's.
                lost.message = (
                    f"{result.error.message}; no slot was found for another attempt: {lost.message}"
                )
            raise

    def _account(self, attempt: Attempt, result: Result) -> None:
        """Tell the breaker: our own ends, callers' mistakes and “full” say nothing about the backend (U5)."""
        if result.fault:
            self._services.gate.report(attempt.upstream.name, ok=False)

    def _account_ok(self, attempt: Attempt) -> None:
        self._services.gate.report(attempt.upstream.name, ok=True)

    # --- ends from outside --------------------------------------------------------------------------------------

    def _departed(self) -> None:
        """The caller is gone, or was cut off: everything that is done for it stops now (A6, B4)."""
        if self.phase is Phase.COMPLETE or self._finalized:
            return
        if self.task is None and self.attempt is not None:
            self._follow()
        if self.task is not None:
            self.task.cancel()

    def abort(self, error: MeshError, cause: str | None = None) -> None:
        """End it from our side: deadline, shutdown, operator."""
        attempt = self.attempt
        if (
            self._forced is not None
            or self.phase is Phase.COMPLETE
            or (self.task is None and attempt is None)
        ):
            return
        self._forced = (error, cause or error.code)
        if attempt is not None and attempt.sent and not attempt.over:
            attempt.fail(error)
        elif self.task is not None:
            self.task.cancel()
        else:
            self._failed = error  # `_attempt_done` is on its way

    def shut_down(self) -> None:
        """The process ends and this request has not (B7)."""
        self.abort(
            MeshError("shutting_down", "the gateway is shutting down; send it again", close=True), SHUTDOWN
        )

    def check(self, now: float) -> None:
        """The sweep's visit."""
        if self.phase is Phase.COMPLETE:
            if now >= self.request.deadline_at and self.responder.unsent_bytes():
                # The backend is done and the caller does not take the rest: the one deadline bounds that, too (A7).
                self._forced = (MeshError("deadline_exceeded", "the deadline passed"), "deadline_exceeded")
                self.phase = Phase.AFTER_CONTENT
                self.responder.cut()
            return
        if now >= self.request.deadline_at and self.step is not Step.WAITING:
            self.abort(
                MeshError("deadline_exceeded", "the request's deadline passed before its answer was complete")
            )
            return
        attempt = self.attempt
        if attempt is not None:
            attempt.check(now)
        keepalive_s = self._settings.keepalive_s
        responder = self.responder
        if (
            keepalive_s
            and self.stream
            and responder.started
            and not responder.finished
            and not responder.paused
            and now - self._last_write_at >= keepalive_s
        ):
            self._last_write_at = now
            responder.write(KEEPALIVE)

    def _caller_stalled(self) -> None:
        if self.attempt is not None:
            self.attempt.pause()

    def _caller_reads(self) -> None:
        if self.attempt is not None:
            self.attempt.resume()

    def _cancel_cause(self) -> str:
        responder = self.responder
        if responder.departed:
            # Left, or cut off, before it had taken everything: that is not complete.
            self.phase = Phase.AFTER_CONTENT if self.phase is Phase.COMPLETE else self.phase
            return responder.departure if responder.departure in (SEND_TIMEOUT, SHUTDOWN) else CLIENT_GONE
        if self.phase is Phase.COMPLETE:
            return OK  # the caller has it all; only the backend's own end was still waited for
        return self._forced[1] if self._forced is not None else SHUTDOWN

    # --- the backend's side -----------------------------------------------------------------------------------

    def _payload(self) -> list[bytes]:
        incoming, services = self._incoming, self._services
        if not self.responder.started:
            self.step = advance(self.step, Step.ATTEMPT)
        body = incoming.body
        if self._settings.upstream_name != self._peek.model:
            body = replace_model(body, self._settings.upstream_name)
        attempt = self.attempt
        if attempt is None:
            raise MeshError("internal", "no attempt is under way")
        return attempt.upstream.render(
            b"POST",
            incoming.path if incoming.path.startswith("/v1/") else "/v1" + incoming.path,
            forward_request_headers(incoming.headers),
            body,
            attempt_id=attempt.attempt_id,
            timeout_s=self.request.deadline_at - services.loop.time(),
            traceparent=self.trace,
        )

    # --- the end ------------------------------------------------------------------------------------------------

    def finalize(self, cause: str) -> None:
        """Settle everything, once, whatever raises: slots, books, response, body bytes, event (B2, B3)."""
        if self._finalized:
            return
        self._finalized = True
        self._cause = cause
        if cause == CLIENT_GONE:
            waiting = self.request.state is RequestState.WAITING
            self._stage = "waiting" if waiting else str(self.phase)
        # Each part runs whatever became of those before it.
        for part in _PARTS:
            try:
                part(self)
            except Exception as bug:
                self._services.bug("an exchange could not be finished cleanly", bug)

    def _close_attempt(self) -> None:
        if self.attempt is not None:
            self.attempt.close()

    def _settle(self) -> None:
        self.step = advance(Step.ENDED, Step.SETTLED)
        gate, lease = self._services.gate, self.request.lease
        try:
            if lease is not None and lease.state is LeaseState.RUNNING:
                if self.attempt is None or self.attempt.lease is not lease:
                    gate.release(lease)  # granted, and no attempt was made with it
                else:
                    # Closing the attempt failed: the backend may go on.
                    attempt = self.attempt
                    self._services.drains.adopt(
                        lease,
                        None,
                        attempt.upstream,
                        limit_at=attempt.limit_at,
                        attempt_id=attempt.attempt_id,
                    )
        finally:
            usual = self._cause == OK and self.phase is Phase.COMPLETE
            gate.settle(self.request, _DONE if usual else Outcome(self.phase, self._cause or "internal"))

    def _end_response(self) -> None:
        if not self.responder.finished:
            self.responder.cut()

    def _release_body(self) -> None:
        self._incoming.release_body()

    def _leave(self) -> None:
        self._services.live.discard(self)

    def _unlink(self) -> None:
        """What has ended refers to nothing in a circle: its memory comes back at once, not by a collection."""
        self.task = None
        self.request.lease = None
        if self.attempt is not None:
            self.attempt.unlink()

    def _tell(self) -> None:
        cause = self._cause or "internal"
        self._services.emit(ended_event(self, cause, self._stage, self._services.loop.time()))


# Of the end, in this order. Named once: seven bound methods for each request would cost as much as what they do.
_PARTS: Final[tuple[Callable[[Exchange], None], ...]] = (
    Exchange._close_attempt,
    Exchange._settle,
    Exchange._end_response,
    Exchange._release_body,
    Exchange._leave,
    Exchange._tell,
    Exchange._unlink,
)
