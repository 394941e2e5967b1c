"""What one step of admission decided, in the order of the decisions. The gate turns these into futures."""

from __future__ import annotations

from dataclasses import dataclass

from inferencemesh.core.request import Lease, Request


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served, and when it is worth coming back (contract A10).

    `code` is a row of `core.errors`; `message` is safe to send. `retry_after_s` is exact, within (0, 60] and
    already spread over callers. `place` is the place in the line that it would have had, `estimate_s` the
    wait expected there; None where that means nothing.
    """

    code: str
    message: str
    retry_after_s: float
    place: int | None = None
    estimate_s: float | None = None


# A generated __init__ is never compiled (docs/deployment.md, "Speed"): what is made for each request has its own.
@dataclass(slots=True, init=False)
class Granted:
    """`request` holds `lease` from now on: from its offer, from the line, or again after it was requeued."""

    request: Request
    lease: Lease

    def __init__(self, request: Request, lease: Lease) -> None:
        self.request = request
        self.lease = lease


@dataclass(slots=True)
class Queued:
    """`request` has a place in the line."""

    request: Request


@dataclass(slots=True)
class Refused:
    """`request` was not accepted; nothing of it is kept."""

    request: Request
    refusal: Refusal


@dataclass(slots=True)
class Expired:
    """A waiter's queue timeout or deadline has come (`queue_timeout`, `deadline_exceeded`). It is settled."""

    request: Request
    refusal: Refusal


@dataclass(slots=True)
class Displaced:
    """A waiter gave its place to a tenant that had less than its share (contract D8). It is settled."""

    request: Request
    refusal: Refusal


Effect = Granted | Queued | Refused | Expired | Displaced
