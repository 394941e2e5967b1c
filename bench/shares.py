"""From what became of each request to figures: who held slots, what its weight was due, how long it waited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.tenants import Ask, Crowd

POINTS = 60  # of a curve that is drawn


@dataclass(frozen=True)
class Span:
    """A tenant wanted, or held, one slot from `start` to `end` (seconds)."""

    tenant: str
    start: float
    end: float


def spans(asks: Iterable[Ask], begin: float, end: float, *, held: bool) -> list[Span]:
    """When requests held their slots, or (not `held`) when they wanted one: from the first try to the end.

    Cut to the window; what had not ended by then held or wanted until then.
    """
    found = []
    for ask in asks:
        start = ask.granted_at if held else ask.first_at
        last = ask.ended_at if ask.ended_at is not None else ask.given_up_at
        if start is None:
            continue
        cut = Span(ask.tenant, max(start, begin), min(last if last is not None else end, end))
        if cut.end > cut.start:
            found.append(cut)
    return found


def dealt(slots: float, wanted: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, float]:
    """`slots` shared by weight, where nobody gets more than it wants and what it leaves goes to the others."""
    shares = dict.fromkeys(wanted, 0.0)
    open_ = {name for name, count in wanted.items() if count}
    left = slots
    while open_ and left > 1e-9:
        per_weight = left / sum(weights[name] for name in open_)
        full = {name for name in open_ if wanted[name] <= per_weight * weights[name]}
        if not full:
            return shares | {name: per_weight * weights[name] for name in open_}
        for name in full:
            shares[name] = float(wanted[name])
            left -= wanted[name]
        open_ -= full
    return shares


@dataclass
class Due:
    """Of one tenant, over the time in which it wanted more than its share: slot-seconds due to it, and held."""

    due: float = 0.0
    held: float = 0.0
    seconds: float = 0.0


def due(
    held: Sequence[Span], wanted: Sequence[Span], slots: int, weights: Mapping[str, float]
) -> dict[str, Due]:
    """What each tenant's weight was due at every instant, and what it held at the same instants."""
    changes: list[tuple[float, str, int, int]] = []  # when, who, held, wanted
    for span in held:
        changes += [(span.start, span.tenant, 1, 0), (span.end, span.tenant, -1, 0)]
    for span in wanted:
        changes += [(span.start, span.tenant, 0, 1), (span.end, span.tenant, 0, -1)]
    changes.sort()
    holds, wants = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0)
    found = {name: Due() for name in weights}
    before = changes[0][0] if changes else 0.0
    for at, tenant, more_held, more_wanted in changes:
        if at > before:
            shares = dealt(slots, wants, weights)
            for name, share in shares.items():
                if wants[name] > share + 1e-9:
                    mine = found[name]
                    mine.due += share * (at - before)
                    mine.held += holds[name] * (at - before)
                    mine.seconds += at - before
            before = at
        holds[tenant] += more_held
        wants[tenant] += more_wanted
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of all are not above; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def curve(held: Sequence[Span], tenant: str, weight: float, begin: float, end: float) -> list[float]:
    """Slot-seconds by weight that `tenant` has had at `POINTS` instants from `begin` to `end`."""
    mine = [span for span in held if span.tenant == tenant]
    instants = [begin + (end - begin) * number / (POINTS - 1) for number in range(POINTS)]
    return [
        round(sum(max(0.0, min(at, span.end) - span.start) for span in mine) / weight, 3) for at in instants
    ]


def figures(
    asks: Sequence[Ask], crowds: Sequence[Crowd], slots: int, begin: float, end: float
) -> dict[str, dict[str, object]]:
    """Of each tenant what is told in table, JSON and picture. Times in seconds."""
    held = spans(asks, begin, end, held=True)
    wanted = spans(asks, begin, end, held=False)
    owed = due(held, wanted, slots, {crowd.name: crowd.weight for crowd in crowds})
    total = sum(span.end - span.start for span in held)
    found: dict[str, dict[str, object]] = {}
    for crowd in crowds:
        mine = [ask for ask in asks if ask.tenant == crowd.name]
        served = [ask for ask in mine if ask.granted_at is not None and begin <= ask.granted_at < end]
        waits = [ask.wait_s for ask in served if ask.wait_s is not None]
        firsts = [ask.content_at - ask.first_at for ask in served if ask.content_at is not None]
        slot_s = sum(span.end - span.start for span in held if span.tenant == crowd.name)
        own = owed[crowd.name]
        backlogged = own.seconds >= 0.25 * (end - begin)
        found[crowd.name] = {
            "weight": crowd.weight,
            "about": crowd.about,
            "served": len(served),
            "slot_seconds": round(slot_s, 2),
            "share": round(slot_s / total, 4) if total else 0.0,
            "of_its_due": round(own.held / own.due, 3) if backlogged else None,
            "backlogged_s": round(own.seconds, 2),
            "wait_p50_s": percentile(waits, 0.50),
            "wait_p95_s": percentile(waits, 0.95),
            "first_content_p50_s": _rounded(percentile(firsts, 0.50)),
            "first_content_p95_s": _rounded(percentile(firsts, 0.95)),
            "refusals": sum(len(ask.refusals) for ask in mine),
            "curve": curve(held, crowd.name, crowd.weight, begin, end),
            "waits_s": [percentile(waits, step / 40) for step in range(1, 41)] if waits else [],
        }
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
