from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from bench import measure, summary
from bench.load import percentile
from bench.plot import panels
from bench.summary import Sample, Target
from bench.tables import tables


def _sample(peer: str, number: int, value: float, *, scenario: str = "plain", faults: int = 0) -> Sample:
    return Sample(peer, scenario, number, {"cpu_us": value}, faults, ["wrong"] * faults)


def test_ratios_compare_within_a_round() -> None:
    samples = [
        _sample("inferencemesh", 0, 60.0),
        _sample("envoy", 0, 30.0),
        _sample("inferencemesh", 1, 90.0),  # both were slow: the ratio says so
        _sample("envoy", 1, 60.0),
        _sample("inferencemesh", 2, 10.0),  # alone in its round
    ]
    assert summary.ratios(samples, "inferencemesh", "envoy", "plain", "cpu_us") == [2.0, 1.5]


def test_runs_with_wrong_answers_do_not_count() -> None:
    samples = [_sample("inferencemesh", 0, 1.0, faults=3), _sample("inferencemesh", 1, 50.0)]
    assert summary.values(samples, "inferencemesh", "plain", "cpu_us") == {1: 50.0}
    assert summary.summarise(samples)["plain"]["inferencemesh"]["fault_count"] == 3


def test_a_target_is_judged_by_the_median() -> None:
    samples = [_sample("inferencemesh", n, value) for n, value in enumerate((10.0, 21.0, 30.0))]
    samples += [_sample("envoy", n, 10.0) for n in range(3)]
    targets = (
        Target("met", "plain", "cpu_us", 2.1, "envoy"),
        Target("missed", "plain", "cpu_us", 2.0, "envoy"),
        Target("absolute", "plain", "cpu_us", 21.0),
        Target("unknown", "plain", "cpu_us", 2.0, "nginx"),
    )
    verdicts = summary.judge(samples, targets)
    assert [verdict.met for verdict in verdicts] == [True, False, True, None]
    assert verdicts[0].value == pytest.approx(2.1)
    assert verdicts[0].least == pytest.approx(1.0)


def test_each_form_that_was_measured_is_judged() -> None:
    samples = [_sample(peer, 0, value) for peer, value in (("inferencemesh", 40.0), ("compiled", 20.0))]
    targets = (Target("some", "plain", "cpu_us", 30.0), Target("none", "plain", "cpu_us", 10.0))
    verdicts = summary.judge([*samples, _sample("envoy", 0, 10.0)], targets)
    assert [(verdict.text, verdict.peer, verdict.met) for verdict in verdicts] == [
        ("some", "inferencemesh", False),
        ("some", "compiled", True),
        ("none", "inferencemesh", False),
        ("none", "compiled", False),
    ]
    assert summary.missed(verdicts) == ["none"]


def test_added_latency_is_over_direct_in_the_same_round() -> None:
    samples = [
        Sample("direct", "latency", 0, {"p50_us": 200.0}),
        Sample("nginx", "latency", 0, {"p50_us": 450.0}),
        Sample("nginx", "latency", 1, {"p50_us": 450.0}),
    ]
    added = summary.with_added(samples)
    assert added[1].figures["added_p50_us"] == 250.0
    assert "added_p50_us" not in added[2].figures


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([], 0.5) != percentile([], 0.5)


def _result(**changes: Any) -> dict[str, Any]:
    return {
        "window_s": 2.0,
        "done": 1000,
        "events": 0,
        "reads": 1000,
        "cpu_ns": {"gateway": 50_000_000, "fake": 6_000_000, "load": 7_000_000},
        **changes,
    }


def test_figures_are_for_each_answer() -> None:
    found = measure.figures(measure.SCENARIOS["plain"], _result(), direct=False)
    assert found["cpu_us"] == 50.0
    assert found["per_second"] == 500.0
    assert found["gateway_busy"] == pytest.approx(0.025)
    assert "reads_per_event" not in found


def test_without_a_gateway_the_fake_stands_in_its_place() -> None:
    found = measure.figures(measure.SCENARIOS["plain"], _result(), direct=True)
    assert found["cpu_us"] == 6.0


def test_events_are_counted_with_their_reads() -> None:
    found = measure.figures(measure.SCENARIOS["busy"], _result(events=2000, reads=1000, done=0), direct=False)
    assert found["cpu_us"] == 25.0
    assert found["reads_per_event"] == 0.5
    assert found["cpu_us_per_read"] == 50.0


def test_memory_is_a_slope() -> None:
    levels = [
        {
            "streams": 100,
            "pss_kib": {"gateway": 31_000, "fake": 1},
            "rss_kib": {"gateway": 41_000, "fake": 1},
        },
        {
            "streams": 300,
            "pss_kib": {"gateway": 33_000, "fake": 1},
            "rss_kib": {"gateway": 43_000, "fake": 1},
        },
    ]
    found = measure.figures(measure.SCENARIOS["memory"], _result(levels=levels), direct=False)
    assert found["pss_kib"] == 10.0
    assert found["rss_kib"] == 10.0
    assert found["base_pss_kib"] == 30_000.0


def test_the_gateway_has_a_cpu_of_its_own() -> None:
    assert measure.Cpus.choose([0, 1]) == measure.Cpus(0, 1, 1)
    assert measure.Cpus.choose([2, 3, 5, 7]) == measure.Cpus(2, 3, 5)
    assert measure.Cpus.choose([0]) == measure.Cpus(None, None, None)
    assert measure.Cpus.choose([0, 1], pin=False) == measure.Cpus(None, None, None)


def _whole_result() -> dict[str, Any]:
    samples = [_sample(peer, 0, value) for peer, value in (("direct", 5.0), ("inferencemesh", 50.0))]
    return {
        "scenarios": {"plain": {"title": "plain request", "unit": "µs CPU"}},
        "summary": summary.summarise(samples),
        "targets": [
            {
                "peer": "inferencemesh",
                "text": "a bound",
                "bound": 2.0,
                "value": None,
                "least": None,
                "met": None,
            },
            {
                "peer": "inferencemesh",
                "text": "another",
                "bound": 2.0,
                "value": 1.5,
                "least": 1.0,
                "met": True,
            },
        ],
    }


def test_tables_show_figures_ratios_and_targets() -> None:
    out = io.StringIO()
    console = Console(width=120, file=out)
    for table in tables(_whole_result()):
        console.print(table)
    text = out.getvalue()
    for expected in ("50.0 / 50.0", "10.00 / 10.00", "not measured", "met"):
        assert expected in text


def test_panels_leave_out_what_was_not_measured() -> None:
    (panel,) = panels(_whole_result())
    assert [bar["peer"] for bar in panel["bars"]] == ["direct", "inferencemesh"]
