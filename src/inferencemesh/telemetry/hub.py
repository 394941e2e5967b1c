"""The hub: every event goes to every subscriber in one synchronous step, and none can hurt a request.

A subscriber is a callable that takes an event and returns at once: it folds it into counters or puts it into
a bounded queue. One that raises is caught and counted (contract B2: a raising metric or log never changes how
a request is settled); the first failure of each minute is reported, the rest only counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from inferencemesh.core.events import Event

Subscriber = Callable[[Event], object]
Report = Callable[[str, Exception, int], object]

REPORT_EVERY_S = 60.0  # a subscriber that fails on every request must not fill the log


def _log_failure(name: str, error: Exception, dropped: int) -> None:
    """The default report: one warning through the standard logger, where the log pipeline picks it up."""
    logging.getLogger("inferencemesh.telemetry").warning(
        "telemetry subscriber %s failed (%d events lost so far)", name, dropped, exc_info=error
    )


def subscriber_name(subscriber: Subscriber) -> str:
    """What a subscriber is called in counters: its own `name`, else that of its function or class."""
    for value in (getattr(subscriber, "name", None), getattr(subscriber, "__qualname__", None)):
        if isinstance(value, str):
            return value
    return type(subscriber).__name__


class Hub:
    """Fan-out of events.

    `report(name, error, dropped)` is called at most once per minute over all subscribers; whatever it raises
    is swallowed. `clock` gives monotonic seconds.
    """

    __slots__ = ("_clock", "_dropped", "_report", "_reported_at", "_subscribers")

    def __init__(
        self,
        subscribers: Iterable[Subscriber] = (),
        *,
        report: Report | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscribers: tuple[Subscriber, ...] = tuple(subscribers)
        self._report = report if report is not None else _log_failure
        self._clock = clock
        self._dropped: dict[str, int] = {}
        self._reported_at: float | None = None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a subscriber; it gets the events from now on."""
        self._subscribers = (*self._subscribers, subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber; unknown ones are ignored."""
        self._subscribers = tuple(s for s in self._subscribers if s != subscriber)

    def emit(self, event: Event) -> None:
        """Give `event` to every subscriber. Never raises an `Exception`."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:
                self._failed(subscriber, error)

    def _failed(self, subscriber: Subscriber, error: Exception) -> None:
        try:
            name = subscriber_name(subscriber)
            self._dropped[name] = self._dropped.get(name, 0) + 1
            now = self._clock()
            if self._reported_at is None or now - self._reported_at >= REPORT_EVERY_S:
                self._reported_at = now
                self._report(name, error, self.dropped_total)
        except Exception:  # noqa: S110 - there is nowhere left to say it, and the request comes first
            pass

    @property
    def dropped_total(self) -> int:
        """How many times an event was lost on a subscriber."""
        return sum(self._dropped.values())

    def dropped(self) -> Mapping[str, int]:
        """The same by subscriber; empty while none has failed."""
        return dict(self._dropped)
