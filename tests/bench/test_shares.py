from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.fairness import POLICIES, table
from bench.shares import Span, dealt, due, figures, percentile
from bench.tenants import CROWDS, Ask

WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.0}


def test_slots_are_dealt_by_weight() -> None:
    assert dealt(8, {"a": 60, "b": 60, "c": 60}, WEIGHTS) == {"a": 2.0, "b": 2.0, "c": 4.0}


def test_what_one_does_not_want_goes_to_the_others_by_weight() -> None:
    assert dealt(8, {"a": 60, "b": 60, "c": 2}, WEIGHTS) == {"a": 3.0, "b": 3.0, "c": 2.0}
    assert dealt(8, {"a": 1, "b": 60, "c": 1}, WEIGHTS) == {"a": 1.0, "b": 6.0, "c": 1.0}
    assert dealt(8, {"a": 1, "b": 0, "c": 2}, WEIGHTS) == {"a": 1.0, "b": 0.0, "c": 2.0}


def test_due_is_counted_while_a_tenant_wants_more_than_its_share() -> None:
    held = [Span("a", 0.0, 4.0), Span("a", 0.0, 4.0), Span("b", 2.0, 4.0)]
    wanted = [Span("a", 0.0, 4.0)] * 3 + [Span("b", 2.0, 4.0)]
    found = due(held, wanted, 2, {"a": 1.0, "b": 1.0})
    assert (found["a"].due, found["a"].held, found["a"].seconds) == (2 * 2.0 + 2 * 1.0, 8.0, 4.0)
    assert found["b"].seconds == 0.0  # it has what it wants


def test_percentiles() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95.0
    assert percentile([1.0], 0.95) == 1.0


def test_figures_and_table_of_a_run() -> None:
    asks = [Ask("long", 0.0, [], 1.0, 1.0, 1.1, 3.0), Ask("long", 0.0, ["queue_full"], 2.0, 2.5, 2.6, None)]
    asks += [Ask("light", 1.0, [], 0.0, 1.0, 1.0, 2.0), Ask("short", 0.0, ["displaced"])]
    found = figures(asks, CROWDS, 8, 0.0, 4.0)
    assert found["long"]["slot_seconds"] == pytest.approx(3.5)  # what is under way counts up to the end
    assert found["light"]["share"] == pytest.approx(1.0 / 4.5, abs=1e-3)
    assert found["short"]["refusals"] == 1
    assert found["short"]["wait_p95_s"] is None
    shown = Console(file=io.StringIO(), width=140)
    shown.print(table({"policies": {policy: {"tenants": found} for policy in POLICIES}}))
    assert "long (weight 1)" in shown.file.getvalue()  # type: ignore[attr-defined]
