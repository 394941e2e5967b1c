"""What the model server remembers of its requests: counters, and one small record for each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["waiting", "running", "completed", "failed", "aborted", "refused", "invalid"]
KEPT = 100_000  # records; older ones are forgotten, the counters go on


class Record:
    """One request. Instants are those of the event loop, in seconds."""

    __slots__ = (
        "arrived_at",
        "ended_at",
        "first_byte_at",
        "key",
        "left_at",
        "lingering",
        "model",
        "started_at",
        "state",
        "stream",
        "tokens",
        "width",
    )

    def __init__(self, key: str, arrived_at: float) -> None:
        self.key = key
        self.state: State = "waiting"
        self.model: str | None = None
        self.stream = False
        self.width = 0
        self.tokens = 0
        self.lingering = False  # its caller is gone, its work goes on
        self.arrived_at = arrived_at
        self.started_at: float | None = None  # got its slots
        self.first_byte_at: float | None = None  # first byte of the body written
        self.left_at: float | None = None  # the disconnect was seen
        self.ended_at: float | None = None  # its slots (or its place) came back

    def document(self, epoch_at: float) -> dict[str, object]:
        """For JSON: `arrived_ms` counts from the epoch, all others from the arrival of the request."""

        def since_arrival(at: float | None) -> float | None:
            return None if at is None else _ms(at - self.arrived_at)

        ended_ms = since_arrival(self.ended_at)
        return {
            "state": self.state,
            "model": self.model,
            "stream": self.stream,
            "width": self.width,
            "tokens": self.tokens,
            "lingering": self.lingering,
            "arrived_ms": _ms(self.arrived_at - epoch_at),
            "started_ms": since_arrival(self.started_at),
            "first_byte_ms": since_arrival(self.first_byte_at),
            "left_ms": since_arrival(self.left_at),
            "aborted_ms": ended_ms if self.state == "aborted" else None,
            "ended_ms": ended_ms,
        }


@dataclass(slots=True)
class Totals:
    """Counters since the start or the last reset.

    `received` = waiting + running requests + completed + failed + aborted + refused + invalid.
    """

    received: int = 0
    started: int = 0  # got their slots
    completed: int = 0  # generated to their natural end
    failed: int = 0  # ended as their script told them to fail
    aborted: int = 0  # stopped because the caller had gone; those below are in it
    aborted_waiting: int = 0  # gone before they had started
    refused: int = 0  # 429: full
    invalid: int = 0  # 4xx: no such model, bad body, bad script
    tokens_made: int = 0  # over all choices


class History:
    """The last records, in order of arrival."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._records: dict[str, Record] = {}
        self.totals = Totals()

    def open(self, name: str, arrived_at: float) -> Record:
        """A record for a new request. A name that was seen before gets its number of arrival behind it."""
        self.totals.received += 1
        key = name if name not in self._records else f"{name}#{self.totals.received}"
        record = Record(key, arrived_at)
        self._records[key] = record
        if len(self._records) > self._kept:
            del self._records[next(iter(self._records))]
        return record

    def clear(self) -> None:
        """Forget all, counters too."""
        self._records.clear()
        self.totals = Totals()

    def documents(self, epoch_at: float, only: str | None = None) -> dict[str, dict[str, object]]:
        """All records by key, or those of one name."""
        return {
            key: record.document(epoch_at)
            for key, record in self._records.items()
            if only is None or key == only or key.startswith(only + "#")
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 1)
