from __future__ import annotations

import logging

from inferencemesh.core.events import Event, Retried
from inferencemesh.telemetry.hub import REPORT_EVERY_S, Hub

EVENT = Retried("gpu-a", "full")


class Broken:
    name = "broken"

    def __call__(self, event: Event) -> None:
        raise RuntimeError("no")


def test_every_subscriber_gets_every_event_in_order():
    seen: list[tuple[str, Event]] = []
    hub = Hub([lambda e: seen.append(("a", e)), lambda e: seen.append(("b", e))])
    hub.emit(EVENT)
    assert seen == [("a", EVENT), ("b", EVENT)]
    assert hub.dropped_total == 0


def test_a_raising_subscriber_is_counted_and_the_others_are_served():
    seen: list[Event] = []
    hub = Hub([Broken(), seen.append], report=lambda *_: None)
    hub.emit(EVENT)
    hub.emit(EVENT)
    assert seen == [EVENT, EVENT]
    assert hub.dropped_total == 2
    assert hub.dropped() == {"broken": 2}


def test_failures_are_reported_once_per_minute_and_a_raising_report_is_swallowed():
    now = [100.0]
    reports: list[tuple[str, int]] = []

    def report(name: str, error: Exception, dropped: int) -> None:
        reports.append((name, dropped))
        raise ValueError("even this")

    hub = Hub([Broken()], report=report, clock=lambda: now[0])
    for _ in range(5):
        hub.emit(EVENT)
    assert reports == [("broken", 1)]
    now[0] += REPORT_EVERY_S
    hub.emit(EVENT)
    assert reports == [("broken", 1), ("broken", 6)]


def test_the_default_report_goes_to_the_standard_logger(caplog):
    with caplog.at_level(logging.WARNING, "inferencemesh.telemetry"):
        Hub([Broken()]).emit(EVENT)
    assert "broken" in caplog.text


def test_subscribers_can_be_added_and_removed():
    seen: list[Event] = []
    hub = Hub()
    hub.subscribe(seen.append)
    hub.emit(EVENT)
    hub.unsubscribe(seen.append)
    hub.emit(EVENT)
    assert seen == [EVENT]
