"""What happened, as immutable facts. Telemetry, log and dashboard fold them; nobody in the data path waits for them.

`at` is Unix time in seconds; durations end in `_s` (seconds), sizes in `_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferencemesh.core.outcome import Phase


@dataclass(frozen=True, slots=True)
class RequestEnded:
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


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request was answered without having been accepted."""

    at: float
    id: str
    tenant: str
    model: str | None
    code: str
    status: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """A request that had a place in the line left it; `result` is `granted` or a cause."""

    model: str
    tenant: str
    wait_s: float
    result: str


@dataclass(frozen=True, slots=True)
class Retried:
    """A request went back to the head of its line: `reason` is `full`, or an error code of the attempt."""

    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """A draining slot was given back; `evidence` says why we believe that the backend has stopped."""

    backend: str
    evidence: str  # ended | peer_closed | grace | trust | reported | limit | operator
    age_s: float


@dataclass(frozen=True, slots=True)
class BackendChanged:
    """A backend came up or went down, or its breaker moved."""

    backend: str
    up: bool
    breaker: str
    reason: str


Event = RequestEnded | RequestRefused | WaitEnded | Retried | Drained | BackendChanged
