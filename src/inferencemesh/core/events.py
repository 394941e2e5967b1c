"""What happened, as immutable facts. Telemetry, log and dashboard fold them; nobody in the data path waits for them.

Named tuples: immutable, and cheap to make, since there is one for each request. `at` is Unix time in seconds;
durations end in `_s` (seconds), sizes in `_bytes`.
"""

from __future__ import annotations

from typing import NamedTuple

from inferencemesh.core.outcome import Phase


class RequestEnded(NamedTuple):
    """An accepted request has come to its one end (contract F3)."""

    at: float
    id: str
    tenant: str
    model: str
    backend: str | None
    attempts: int
    stream: bool
    status: int | None  # what the caller was answered; None if nothing was written
    phase: Phase
    cause: str
    upstream_phase: Phase
    wait_s: float
    first_content_s: float | None  # from arrival
    backend_first_content_s: float | None  # from dispatch
    duration_s: float
    bytes_in: int
    bytes_out: int
    events: int
    tokens_in: int | None
    tokens_out: int | None
    notes: tuple[str, ...] = ()  # e.g. marker_missing, upstream_closed_late
    stage: str | None = None  # of a cancellation: waiting, before_headers, before_content, after_content
    detail: str | None = None  # of a failure, for the operator: which address, what the system said
    peer: str = ""  # the caller's address


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
