"""The life of one exchange as a table: which step may follow which (contract B1).

The shell walks it with `advance`; a step that the table does not hold is a bug of ours and raises, so that no
path can, say, settle a request twice or start a response after its end.

    VALIDATED ─▶ WAITING ─▶ GRANTED ─▶ ATTEMPT ─▶ COMMITTED ─▶ ENDED ─▶ SETTLED
        │          ▲ │ ▲       │          │            │
        │          │ │ └───────┴── back ──┘            └──▶ WAITING  (only comments were written: contract C4)
        └──────────┴─┴────────────────▶ ENDED
"""

from __future__ import annotations

from enum import StrEnum


class Step(StrEnum):
    """Where an exchange is."""

    VALIDATED = "validated"  # read whole and understood; holds nothing yet
    WAITING = "waiting"  # has a place in the line
    GRANTED = "granted"  # holds slots, nothing was sent to the backend
    ATTEMPT = "attempt"  # the backend has, or may have, the request
    COMMITTED = "committed"  # the response to the caller has started
    ENDED = "ended"  # nothing more goes to the caller; the slots are free or draining
    SETTLED = "settled"  # the one outcome is in the books


class IllegalTransitionError(Exception):
    """A step that the table does not allow: a bug in the shell."""


TABLE: dict[Step, frozenset[Step]] = {
    Step.VALIDATED: frozenset({Step.WAITING, Step.GRANTED, Step.ENDED}),
    Step.WAITING: frozenset({Step.GRANTED, Step.ENDED}),
    Step.GRANTED: frozenset({Step.ATTEMPT, Step.WAITING, Step.ENDED}),
    Step.ATTEMPT: frozenset({Step.COMMITTED, Step.WAITING, Step.ENDED}),
    Step.COMMITTED: frozenset({Step.WAITING, Step.ENDED}),
    Step.ENDED: frozenset({Step.SETTLED}),
    Step.SETTLED: frozenset(),
}


def advance(current: Step, to: Step) -> Step:
    """Return `to` if the table allows it after `current`.

    Raises:
        IllegalTransitionError: the table does not hold this step.
    """
    if to not in TABLE[current]:
        raise IllegalTransitionError(f"an exchange cannot go from {current} to {to}")
    return to
