"""The caller's side of an exchange: its response, as the attempts write it (contract C1, C2, C4).

The `Outlet` of every attempt. One response is started at most once, whichever attempt starts it.
"""

from __future__ import annotations

from inferencemesh.core.errors import MeshError
from inferencemesh.core.outcome import Phase
from inferencemesh.core.phase import Step, advance
from inferencemesh.core.request import Request, RequestState
from inferencemesh.runtime.attempt import Attempt
from inferencemesh.runtime.http1.message import IncomingRequest
from inferencemesh.runtime.http1.responder import Responder
from inferencemesh.runtime.services import Services
from inferencemesh.runtime.settings import ModelSettings
from inferencemesh.runtime.verdict import Headers
from inferencemesh.wire.fields import forward_response_headers
from inferencemesh.wire.render import error_event, error_response


class CallerSide:
    """See the module. `phase` is how far the response has come; `attempt` the present or last attempt."""

    __slots__ = (
        "_body_sent",
        "_incoming",
        "_last_write_at",
        "_services",
        "_settings",
        "attempt",
        "phase",
        "request",
        "responder",
        "status",
        "step",
        "stream",
    )

    def __init__(
        self,
        services: Services,
        incoming: IncomingRequest,
        responder: Responder,
        request: Request,
        settings: ModelSettings,
        *,
        stream: bool,
    ) -> None:
        self._services = services
        self._incoming = incoming
        self._settings = settings
        self.responder = responder
        self.request = request
        self.stream = stream
        self.step = Step.VALIDATED
        self.phase = Phase.BEFORE_HEADERS
        self.status: int | None = None
        self.attempt: Attempt | None = None
        self._body_sent = False  # any body byte but comments: no other backend may answer from here on (C4)
        self._last_write_at = 0.0

    @property
    def started(self) -> bool:
        """Whether the response head was written."""
        return self.responder.started

    def begin(
        self, status: int, headers: Headers, first: bytes, *, length: int | None, whole: bool = False
    ) -> None:
        """Start the response (C1), and with `whole` end it in the same write."""
        if self.step is Step.GRANTED:
            self.step = advance(self.step, Step.ATTEMPT)
        self.step = advance(self.step, Step.COMMITTED)
        self.status = status
        self._last_write_at = self._services.loop.time()
        self.phase = Phase.BEFORE_CONTENT
        self.responder.start(
            status,
            self._response_headers(headers, sse=self.stream),
            length=length,
            first=first,
            whole=whole,
        )
        if whole:
            self._body_sent = True
            self.phase = Phase.COMPLETE
        elif first:
            self._passed()

    def write(self, block: bytes) -> None:
        """Relay."""
        self._last_write_at = self._services.loop.time()
        self.responder.write(block)
        if self.phase is not Phase.AFTER_CONTENT:
            self._passed()

    def finish(self, last: bytes) -> None:
        """Relay the end."""
        self.responder.finish(last)
        self._body_sent = True
        self.phase = Phase.COMPLETE

    def waited_s(self, now: float) -> float:
        """Seconds in the line, up to `now` if it is still there."""
        request = self.request
        return now - request.arrived_at if request.state is RequestState.WAITING else request.waited_s

    def _passed(self) -> None:
        if not self._body_sent:
            self._body_sent = True
            self._incoming.release_body()  # no other attempt can follow
        attempt = self.attempt
        if attempt is not None and attempt.first_content_at is not None:
            self.phase = Phase.AFTER_CONTENT

    def _answer(self, error: MeshError) -> None:
        """Tell the caller of a failure: a status and a body, or one error event in a started stream (C2)."""
        responder = self.responder
        if responder.departed or responder.finished:
            return
        if not responder.started:
            status, headers, body = error_response(
                error, api="openai", request_id=self.request.id, phase=self.phase
            )
            self.status = status
            responder.send(status, headers + self._own_headers()[2:], body)
        elif not self.stream:
            responder.cut()  # a plain body cannot carry an error; only a cut tells the truth
        else:
            event = error_event(error, api="openai", request_id=self.request.id)
            if self._settings.on_failure == "event_then_cut":
                responder.write(event)
                responder.cut()
            else:
                responder.finish(event)

    def _response_headers(self, headers: Headers, *, sse: bool) -> Headers:
        result = forward_response_headers(headers)
        if sse:
            result = [(n, v) for n, v in result if n not in (b"cache-control", b"x-accel-buffering")]
            result.append((b"cache-control", b"no-cache, no-transform"))
            result.append((b"x-accel-buffering", b"no"))
        result.extend(self._own_headers())
        return result

    def _own_headers(self) -> Headers:
        raw = self.request.id.encode()
        own = [
            (b"x-request-id", raw),
            (b"request-id", raw),
            (b"x-mesh-queue-ms", b"%d" % int(self.waited_s(self._services.loop.time()) * 1000)),
        ]
        if self._services.expose_backend and self.attempt is not None:
            own.append((b"x-mesh-backend", self.attempt.upstream.name.encode()))
        return own
