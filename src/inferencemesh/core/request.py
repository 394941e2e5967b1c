"""One request and one attempt's hold of slots, as admission sees them.

Both are made once and changed only by admission; everybody else reads. Underscored fields are admission's
own.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferencemesh.core.estimate import Pace
    from inferencemesh.core.flow import Flow, Lane
    from inferencemesh.core.group import Group
    from inferencemesh.core.line import Line, TenantLine
    from inferencemesh.core.outcome import Outcome
    from inferencemesh.core.slots import Backend


class InvariantError(Exception):
    """The books do not add up, or a caller broke the protocol of a lease. Always a bug of ours."""


NO_BACKENDS: frozenset[str] = frozenset()


class RequestState(IntEnum):
    """Where a request stands. NEW → (WAITING ⇄ RUNNING) → SETTLED, or NEW → REFUSED."""

    NEW = 0
    WAITING = 1  # has a place in the line and no slot (a *collecting* wide request waits, too)
    RUNNING = 2  # has been granted slots and has not reached its outcome
    SETTLED = 3  # has its one outcome
    REFUSED = 4  # was never accepted


class LeaseState(IntEnum):
    """RUNNING → DRAINING → FREED, or RUNNING → FREED."""

    RUNNING = 0
    DRAINING = 1  # ended by us; the backend may still be working
    FREED = 2


class Request:
    """A validated request on its way through admission.

    `width` is how many slots it needs on one backend (contract A13), `size_bytes` what it occupies while it
    waits, `class_offset_s` how much later than its arrival it is ordered within its tenant (contract D6).
    `arrived_at` and `deadline_at` are monotonic seconds.
    """

    __slots__ = (
        "_alarm_at",
        "_class",
        "_collects",
        "_exempt",
        "_expires_at",
        "_lane",
        "_line",
        "_order",
        "_paces",
        "_place",
        "_queued_at",
        "_reserved",
        "_seq",
        "_wait_left_s",
        "arrived_at",
        "attempts",
        "avoid",
        "class_name",
        "class_offset_s",
        "deadline_at",
        "fulls",
        "id",
        "lease",
        "model",
        "outcome",
        "returns",
        "size_bytes",
        "state",
        "tenant",
        "waited_s",
        "width",
    )

    def __init__(
        self,
        id: str,
        tenant: str,
        model: str,
        width: int = 1,
        size_bytes: int = 0,
        class_offset_s: float = 0.0,
        *,
        arrived_at: float,
        deadline_at: float,
        returns: bool | None = None,
        class_name: str = "",
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.model = model
        self.width = width
        self.size_bytes = size_bytes
        self.class_offset_s = class_offset_s
        self.arrived_at = arrived_at
        self.deadline_at = deadline_at
        self.class_name = class_name  # one of those that admission was told, or none of them
        self.returns = returns  # whether its caller says that it tries again; None: it says nothing
        self.state = RequestState.NEW
        self.lease: Lease | None = None  # the newest attempt's; kept after it was freed
        self.outcome: Outcome | None = None
        self.waited_s = (
            0.0  # time in the line, without the time a slot was held; complete once it left the line
        )
        self.attempts = 0  # grants so far; one that a full backend sent back is not counted (contract B6)
        self.avoid = NO_BACKENDS  # those that failed it, tried again only for want of another
        self.fulls = 0  # how often a backend sent it back as full
        # Admission's own:
        self._alarm_at: float | None = None  # when it stops resting, or gives up collecting
        self._class: Group | None = None  # its class, where that has a limit or a rank
        self._line: Line | None = None  # where it has, had or would have had a place
        self._paces: tuple[Pace, ...] = ()  # those that it counts in while it waits
        self._collects = 0  # how often it has begun to collect
        self._seq = 0  # arrival number
        self._order = 0.0  # its position within its tenant: arrival + class offset; far lower once requeued
        self._lane: Lane | None = None  # where it stands in the fair line; None while collecting
        self._place: TenantLine | None = None  # its place in its model's line, collecting included
        self._reserved: Backend | None = None  # the backend it collects slots on
        self._queued_at = 0.0
        self._expires_at = 0.0  # of queue timeout and deadline the earlier
        self._wait_left_s = 0.0  # what the queue timeout still allows
        self._exempt = False  # came back from a backend: outside the line's bound, never displaced

    def __repr__(self) -> str:
        return f"<Request {self.id} {self.tenant}/{self.model} width={self.width} {self.state.name}>"


class Lease:
    """One attempt's hold of `width` slots on one backend (contract B1).

    What is freed is the `backend` *object* captured here, whatever carries its name by then. `granted_at` and
    `draining_since` are monotonic seconds; `draining_since` is None unless it was ever draining. Whoever relays
    the answer writes down what is known of its tokens; charges by tokens read them (contract D3).
    """

    __slots__ = (
        "_charged",
        "_flow",
        "_level",
        "_probe",
        "backend",
        "draining_since",
        "granted_at",
        "input_tokens",
        "output_tokens",
        "request",
        "state",
        "width",
    )

    def __init__(self, request: Request, backend: Backend, width: int, granted_at: float, flow: Flow) -> None:
        self.request = request
        self.backend = backend
        self.width = width
        self.granted_at = granted_at
        self.state = LeaseState.RUNNING
        self.draining_since: float | None = None
        self.input_tokens: int | None = None  # of the prompt, once the backend has told
        self.output_tokens = 0  # as the backend has told, or so many events with content so far
        self._flow = flow
        self._charged = 0.0  # service charged so far, in units of the charge policy
        self._level = 0  # slots held on the backend right after this grant
        self._probe = False  # granted to a half-open backend

    def __repr__(self) -> str:
        return f"<Lease {self.request.id} on {self.backend.name} width={self.width} {self.state.name}>"
