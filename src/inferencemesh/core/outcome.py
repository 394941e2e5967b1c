"""How a request ended: phase x cause (contract C5), and the one word the books count it under.

`Phase` is what had been written to the *caller* when it ended; the upstream's own phase is logged beside it.
`cause` is `ok`, one of the constants below, or an error code of `core.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

OK = "ok"
CLIENT_GONE = "client_gone"
SEND_TIMEOUT = "send_timeout"
SHUTDOWN = "shutdown"
CANCELLED_BY_OPERATOR = "cancelled_by_operator"


class Phase(StrEnum):
    """How far a response had come, as written to the caller."""

    BEFORE_HEADERS = "before_headers"
    BEFORE_CONTENT = "before_content"
    AFTER_CONTENT = "after_content"
    COMPLETE = "complete"


class Kind(StrEnum):
    """The term of the invariant that an ended request is counted under."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


_CANCELLED = frozenset({CLIENT_GONE, CANCELLED_BY_OPERATOR})
_EXPIRED = frozenset({"queue_timeout", "deadline_exceeded", "displaced"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The one end of one request."""

    phase: Phase
    cause: str

    @property
    def kind(self) -> Kind:
        """Which term of `accepted = waiting + running + completed + failed + cancelled + expired` it adds to.

        `displaced` counts as expired: the request lost its place without having been served.
        """
        if self.cause == OK:
            return Kind.COMPLETED
        if self.cause in _CANCELLED:
            return Kind.CANCELLED
        if self.cause in _EXPIRED:
            return Kind.EXPIRED
        return Kind.FAILED
