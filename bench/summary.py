"""From samples to figures: least and median, ratios within a round, and whether the targets are met. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

OURS = "inferencemesh"
COMPILED = "compiled"
FORMS = (OURS, COMPILED)  # of the same product: as Python reads it, and compiled
BASE = "direct"
# What the table shows of each scenario; the rest is in the JSON.
SHOWN = {
    "plain": "cpu_us",
    "start": "cpu_us",
    "busy": "cpu_us",
    "calm": "cpu_us",
    "latency": "added_p50_us",
    "first": "added_p50_us",
    "memory": "pss_kib",
}
RATIO_FIGURES = ("cpu_us", "pss_kib", "per_second")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: a peer, a scenario, a round, and its figures."""

    peer: str
    scenario: str
    round: int
    figures: dict[str, float]
    fault_count: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one of our figures, or on its ratio to another peer's in the same round."""

    text: str
    scenario: str
    figure: str
    bound: float
    against: str | None = None


TARGETS = (
    Target("CPU of a relayed event, 200 streams, to Envoy's", "busy", "cpu_us", 1.1, "envoy"),
    Target("CPU of a relayed event, 200 streams, to HAProxy's", "busy", "cpu_us", 1.8, "haproxy"),
    Target("CPU of a plain request, to Envoy's", "plain", "cpu_us", 1.7, "envoy"),
    Target("KiB of an open idle stream", "memory", "pss_kib", 20.0),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured of one form; `value` is None where a peer was missing."""

    peer: str
    text: str
    bound: float
    value: float | None  # the median over the rounds
    least: float | None
    met: bool | None


def values(samples: Iterable[Sample], peer: str, scenario: str, figure: str) -> dict[int, float]:
    """A figure by round; runs with faults are left out."""
    return {
        sample.round: sample.figures[figure]
        for sample in samples
        if sample.peer == peer
        and sample.scenario == scenario
        and not sample.fault_count
        and math.isfinite(sample.figures.get(figure, math.nan))
    }


def ratios(samples: list[Sample], peer: str, against: str, scenario: str, figure: str) -> list[float]:
    """Ours to theirs, round by round, where both have a sample."""
    mine = values(samples, peer, scenario, figure)
    theirs = values(samples, against, scenario, figure)
    return [mine[number] / theirs[number] for number in sorted(mine) if theirs.get(number, 0) > 0]


def with_added(samples: list[Sample]) -> list[Sample]:
    """The samples, with `added_*` latencies: less what was measured without a gateway in the same round."""
    found: list[Sample] = []
    for sample in samples:
        figures = dict(sample.figures)
        for name in ("p50_us", "p90_us", "p99_us"):
            base = values(samples, BASE, sample.scenario, name).get(sample.round)
            if name in figures and base is not None:
                figures[f"added_{name}"] = figures[name] - base
        found.append(
            Sample(sample.peer, sample.scenario, sample.round, figures, sample.fault_count, sample.faults)
        )
    return found


def spread(numbers: Iterable[float]) -> dict[str, float] | None:
    """Least, median, largest and count; None of nothing."""
    found = sorted(numbers)
    if not found:
        return None
    return {
        "min": found[0],
        "median": statistics.median(found),
        "max": found[-1],
        "rounds": len(found),
    }


def summarise(samples: list[Sample]) -> dict[str, Any]:
    """By scenario and peer: the spread of every figure, and of the ratios of the chief ones to each peer."""
    samples = with_added(samples)
    peers = list(dict.fromkeys(sample.peer for sample in samples))
    table: dict[str, Any] = {}
    for scenario in dict.fromkeys(sample.scenario for sample in samples):
        rows: dict[str, Any] = {}
        for peer in peers:
            mine = [s for s in samples if s.peer == peer and s.scenario == scenario]
            names = dict.fromkeys(name for s in mine for name in s.figures)
            rows[peer] = {
                "figures": {name: spread(values(samples, peer, scenario, name).values()) for name in names},
                "ratios": {
                    against: {
                        name: spread(ratios(samples, peer, against, scenario, name)) for name in RATIO_FIGURES
                    }
                    for against in peers
                    if against != peer
                },
                "fault_count": sum(s.fault_count for s in mine),
            }
        table[scenario] = rows
    return table


def judge(samples: list[Sample], targets: Iterable[Target] = TARGETS) -> list[Verdict]:
    """Each target by the median over the rounds, for each form that was measured."""
    measured = {sample.peer for sample in samples}
    forms = [form for form in FORMS if form in measured] or [OURS]
    return [_verdict(samples, target, form) for target in targets for form in forms]


def missed(verdicts: Iterable[Verdict]) -> list[str]:
    """The targets that no form has met."""
    met: dict[str, bool] = {}
    for verdict in verdicts:
        met[verdict.text] = met.get(verdict.text, False) or verdict.met is True
    return [text for text, is_met in met.items() if not is_met]


def _verdict(samples: list[Sample], target: Target, form: str) -> Verdict:
    if target.against is None:
        numbers = list(values(samples, form, target.scenario, target.figure).values())
    else:
        numbers = ratios(samples, form, target.against, target.scenario, target.figure)
    found = spread(numbers)
    if found is None:
        return Verdict(form, target.text, target.bound, None, None, None)
    middle = found["median"]
    return Verdict(form, target.text, target.bound, middle, found["min"], middle <= target.bound)
