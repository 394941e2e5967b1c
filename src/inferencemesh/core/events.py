"""What happened, as immutable facts. Telemetry, log and dashboard fold them; nobody in the data path waits for them.

Immutable. Named tuples, but for the one that there is of each request: a class of its own is cheaper to make.
`at` is Unix time in seconds; durations end in `_s` (seconds), sizes in `_bytes`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from inferencemesh.core.outcome import Phase


class RequestEnded:
    """An accepted request has come to its one end (contract F3).

    `status` is what the caller was answered, None if nothing was written; `phase` and `stage` what had been written to
    it by then (`stage` of a cancellation only: waiting, or a phase). `notes` are words such as `marker_missing`;
    `detail` is for the operator, of a failure: which address, what the system said. `first_content_s` counts from the
    arrival, `backend_first_content_s` from the dispatch.
    """

    __slots__ = (
        "at",
        "attempts",
        "backend",
        "backend_first_content_s",
        "bytes_in",
        "bytes_out",
        "cause",
        "detail",
        "duration_s",
        "events",
        "first_content_s",
        "id",
        "model",
        "notes",
        "peer",
        "phase",
        "stage",
        "status",
        "stream",
        "tenant",
        "tokens_in",
        "tokens_out",
        "upstream_phase",
        "wait_s",
    )

    def __init__(
        self,
        at: float,
        id: str,
        tenant: str,
        model: str,
        backend: str | None,
        attempts: int,
        stream: bool,
        status: int | None,
        phase: Phase,
        cause: str,
        upstream_phase: Phase,
        wait_s: float,
        first_content_s: float | None,
        backend_first_content_s: float | None,
        duration_s: float,
        bytes_in: int,
        bytes_out: int,
        events: int,
        tokens_in: int | None,
        tokens_out: int | None,
        notes: tuple[str, ...] = (),
        stage: str | None = None,
        detail: str | None = None,
        peer: str = "",
    ) -> None:
        self.at: Final = at
        self.id: Final = id
        self.tenant: Final = tenant
        self.model: Final = model
        self.backend: Final = backend
        self.attempts: Final = attempts
        self.stream: Final = stream
        self.status: Final = status
        self.phase: Final = phase
        self.cause: Final = cause
        self.upstream_phase: Final = upstream_phase
        self.wait_s: Final = wait_s
        self.first_content_s: Final = first_content_s
        self.backend_first_content_s: Final = backend_first_content_s
        self.duration_s: Final = duration_s
        self.bytes_in: Final = bytes_in
        self.bytes_out: Final = bytes_out
        self.events: Final = events
        self.tokens_in: Final = tokens_in
        self.tokens_out: Final = tokens_out
        self.notes: Final = notes
        self.stage: Final = stage
        self.detail: Final = detail
        self.peer: Final = peer


class RequestRefused(NamedTuple):
    """A request was answered without having been accepted."""

    at: float
    id: str
    tenant: str
    model: str | None
    code: str
    status: int
    duration_s: float
    message: str = ""  # what the caller was told
    method: str = ""
    path: str = ""
    peer: str = ""


class WaitEnded(NamedTuple):
    """A request that had a place in the line left it; `result` is `granted` or a cause."""

    model: str
    tenant: str
    wait_s: float
    result: str


class Retried(NamedTuple):
    """A request went back to the head of its line: `reason` is `full`, or an error code of the attempt."""

    backend: str
    reason: str


class Drained(NamedTuple):
    """A draining slot was given back; `evidence` says why we believe that the backend has stopped."""

    backend: str
    evidence: str  # ended | peer_closed | grace | trust | reported | limit | operator
    age_s: float


class BackendChanged(NamedTuple):
    """A backend came up or went down, or its breaker moved."""

    backend: str
    up: bool
    breaker: str
    reason: str


class CleanupOverdue(NamedTuple):
    """A backend did not close its side of a connection that we had ended, within `timeouts.cleanup` (contract B3)."""

    backend: str


Event = CleanupOverdue | RequestEnded | RequestRefused | WaitEnded | Retried | Drained | BackendChanged
