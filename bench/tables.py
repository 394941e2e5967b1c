"""A run's figures as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from bench.summary import FORMS, RATIO_FIGURES, SHOWN

# Of the measuring side, and what goes with it: title, scenario, figure.
_BESIDE = (
    ("requests/s", "plain", "per_second"),
    ("streams/s", "start", "per_second"),
    ("reads/event, 200 streams", "busy", "reads_per_event"),
    ("fake busy, plain", "plain", "fake_busy"),
    ("load busy, plain", "plain", "load_busy"),
    ("fake busy, 200 streams", "busy", "fake_busy"),
    ("load busy, 200 streams", "busy", "load_busy"),
    ("backend connections, plain", "plain", "backend_connections"),
)


def tables(result: dict[str, Any]) -> list[Table]:
    """The figures, what goes with them, our ratios to the other gateways, and the targets."""
    summary, scenarios = result["summary"], result["scenarios"]
    peers = list(dict.fromkeys(peer for rows in summary.values() for peer in rows))
    found = [_figures(summary, scenarios, peers), _beside(summary, peers)]
    forms = [form for form in FORMS if form in peers and len(peers) > 1]
    found += [_ratios(summary, scenarios, peers, form) for form in forms]
    if forms:
        found.append(_targets(result["targets"]))
    return found


def _grid(title: str, columns: list[str]) -> Table:
    table = Table(title=title)
    table.add_column("", min_width=22)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _figures(summary: dict[str, Any], scenarios: dict[str, Any], peers: list[str]) -> Table:
    table = _grid("least / median over the rounds", peers)
    for name, rows in summary.items():
        cells = []
        for peer in peers:
            mark = " [red]![/]" if rows[peer]["fault_count"] else ""
            cells.append(_pair(rows[peer]["figures"].get(SHOWN[name])) + mark)
        table.add_row(f"{scenarios[name]['title']}, {scenarios[name]['unit']}", *cells)
    return table


def _beside(summary: dict[str, Any], peers: list[str]) -> Table:
    table = _grid("medians; `busy` is a share of one CPU", peers)
    for title, scenario, figure in _BESIDE:
        if scenario in summary:
            found = [summary[scenario][peer]["figures"].get(figure) for peer in peers]
            table.add_row(title, *("-" if values is None else _short(values["median"]) for values in found))
    return table


def _ratios(summary: dict[str, Any], scenarios: dict[str, Any], peers: list[str], form: str) -> Table:
    others = [peer for peer in peers if peer != form]
    table = _grid(f"{form} to the others within a round: least / median ratio", others)
    for name, rows in summary.items():
        if SHOWN[name] in RATIO_FIGURES:
            found = [rows[form]["ratios"].get(peer, {}).get(SHOWN[name]) for peer in others]
            table.add_row(scenarios[name]["title"], *(_pair(values, 2) for values in found))
    return table


def _pair(values: dict[str, float] | None, digits: int = 1) -> str:
    return "-" if values is None else f"{values['min']:.{digits}f} / {values['median']:.{digits}f}"


def _targets(targets: list[dict[str, Any]]) -> Table:
    table = Table(title="targets")
    table.add_column("")
    table.add_column("form")
    for title in ("at most", "median", "least"):
        table.add_column(title, justify="right")
    table.add_column("")
    for target in targets:
        measured = ["-" if target[name] is None else f"{target[name]:.2f}" for name in ("value", "least")]
        word = {True: "[green]met[/]", False: "[red]missed[/]", None: "not measured"}[target["met"]]
        table.add_row(target["text"], target["peer"], f"{target['bound']:g}", *measured, word)
    return table


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
