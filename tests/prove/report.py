"""Run every level of proof and write what was counted into docs/reliability.md.

    python -m tests.prove.report                   all of it, about half an hour; writes the page
    python -m tests.prove.report --only mutants    some levels; the others' numbers stay as they are on the page
    python -m tests.prove.report --quick           a budget of about a minute; prints, and writes nothing
    python -m tests.prove.report --ci              what continuous integration runs beyond the suite; writes nothing
    python -m tests.prove.report --json            prints the numbers as JSON; writes nothing

Exit code 1, and nothing written, if anything does not hold. What is said on the way goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.prove.levels import CI, FULL, LEVELS, QUICK, Budget, Numbers, wanted

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
KEYS = ("call_outs", "raised", "awaits", "cancelled")
BEGIN, END = "<!-- numbers: written by `python -m tests.prove.report` -->", "<!-- end of numbers -->"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove.report",
        description="Run every level of proof, and write what was counted into docs/reliability.md: half an hour.",
        epilog=f"Levels: {', '.join(LEVELS)}. Without an option, docs/reliability.md is written anew.",
    )
    budgets = parser.add_mutually_exclusive_group()
    budgets.add_argument("--quick", action="store_true", help="about a minute; writes nothing")
    budgets.add_argument("--ci", action="store_true", help="about two minutes; writes nothing")
    parser.add_argument("--json", action="store_true", help="print the numbers; write nothing")
    parser.add_argument(
        "--only", nargs="+", choices=LEVELS, metavar="LEVEL", help="some; the page keeps the rest"
    )
    chosen = parser.parse_args(arguments)
    budget = QUICK if chosen.quick else CI if chosen.ci else FULL
    numbers = counted(budget, chosen.only or wanted(budget))
    if numbers is None:
        return 1
    if chosen.json:
        print(json.dumps(numbers, indent=1))
    elif budget is FULL:
        PAGE.write_text(updated(PAGE.read_text(), numbers))
        print(f"{PAGE.name} is written", file=sys.stderr)
    else:
        for level, found in numbers.items():
            print(f"{level}: {summary(level, found)} ({found['seconds']:.0f} s)")
    return 0


def counted(budget: Budget, levels: list[str]) -> dict[str, Numbers] | None:
    """Run the levels one after the other; None if one does not hold, which is said."""
    numbers = {}
    for level in levels:
        began = time.monotonic()

        def say(what: str, level: str = level, began: float = began) -> None:
            print(f"{level:12}{time.monotonic() - began:6.0f} s  {what}", file=sys.stderr, flush=True)

        try:
            found = LEVELS[level](budget, say)
        except Exception as broken:
            say(f"DOES NOT HOLD: {type(broken).__name__}: {broken}")
            return None
        numbers[level] = {**found, "seconds": round(time.monotonic() - began, 1)}
    return numbers


# --- in words --------------------------------------------------------------------------------------------------------


def summary(level: str, found: Numbers) -> str:
    """One line for each level; bold is what counts."""
    return SUMMARIES[level](found)


def _exploration(found: Numbers) -> str:
    scopes = found["scopes"].values()
    states, steps = (sum(scope[name] for scope in scopes) for name in ("states", "steps"))
    return f"{len(scopes)} worlds explored whole: **{states:,} states**, {steps:,} steps from them"


def _histories(found: Numbers) -> str:
    first, last = found["seeds"]
    return (
        f"{last - first + 1:,} histories (seeds {first:,} to {last:,}): **{found['steps']:,} steps**, "
        f"{found['invariants']} invariants after each"
    )


def _injection(found: Numbers) -> str:
    shapes = found["shapes"].values()
    call_outs, raised, awaits, cancelled = (
        sum(shape[name] for shape in shapes) for name in ("call_outs", "raised", "awaits", "cancelled")
    )
    return (
        f"{len(shapes)} shapes of requests: **{call_outs} call-outs** counted and {raised} of them made to raise, "
        f"**{awaits} awaits** counted and {cancelled} of them cancelled"
    )


def _virtual(found: Numbers) -> str:
    first, last = found["seeds"]
    return (
        f"{last - first + 1} runs (seeds {first:,} to {last:,}): **{sum(found['fates'].values()):,} requests**, "
        f"the books looked at in {found['turns']:,} turns"
    )


def _storms(found: Numbers) -> str:
    fates = found["fates"]
    left = sum(count for fate, count in fates.items() if "client_gone" in fate)
    return f"{found['storms']} storms: {sum(fates.values()):,} callers, **{left:,} cancelled** by leaving"


def _fuzzing(found: Numbers) -> str:
    blind, guided = (sum(tried[how] for tried in found["targets"].values()) for how in ("blind", "guided"))
    with_coverage = f", {guided:,} guided by coverage" if found["atheris"] else "; atheris was not there"
    return f"{len(found['targets'])} targets: **{blind + guided:,} inputs**: {blind:,} blind{with_coverage}"


def _mutants(found: Numbers) -> str:
    caught = len(found["caught"])
    of = f" (a sample of {found['bugs']})" if caught < found["bugs"] else ""
    return f"**{caught} of {caught}** planted bugs noticed{of}"


SUMMARIES: dict[str, Callable[[Numbers], str]] = {
    "exploration": _exploration,
    "histories": _histories,
    "injection": _injection,
    "virtual": _virtual,
    "storms": _storms,
    "fuzzing": _fuzzing,
    "mutants": _mutants,
}


def told(level: str, found: Numbers) -> str:
    """A level's part of the page."""
    when = datetime.now(UTC).date().isoformat()
    where = f"Python {platform.python_version()}, {os.cpu_count()} processors"
    lines = [f"### Counted: {level}", "", f"{summary(level, found)}.", ""]
    lines += TABLES[level](found)
    lines += ["", f"Run on {when} in {found['seconds']:,.0f} s ({where}).", ""]
    return "\n".join(lines)


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    """A table whose numbers stand to the right."""
    numeric = [all(isinstance(row[at], int) for row in rows) for at in range(len(head))]
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join('--:' if right else '---' for right in numeric)}|"]
    for row in rows:
        cells = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def by_kind(decided: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in decided.items())


TABLES: dict[str, Callable[[Numbers], list[str]]] = {
    "exploration": lambda found: table(
        ("world", "states", "steps", "deepest", "decisions"),
        [
            (name, scope["states"], scope["steps"], scope["deepest"], by_kind(scope["decided"]))
            for name, scope in found["scopes"].items()
        ],
    ),
    "histories": lambda found: table(("decision", "times"), list(found["decided"].items())),
    "injection": lambda found: table(
        ("shape", "call-outs counted", "raised", "awaits counted", "cancelled"),
        [(name, *(shape[key] for key in KEYS)) for name, shape in found["shapes"].items()],
    ),
    "virtual": lambda found: table(("fate", "requests"), list(found["fates"].items())),
    "storms": lambda found: table(("fate", "callers"), list(found["fates"].items())),
    "fuzzing": lambda found: table(
        ("target", "inputs, blind", "inputs, guided"),
        [(name, tried["blind"], tried["guided"]) for name, tried in found["targets"].items()],
    ),
    "mutants": lambda found: table(
        ("planted in", "bug", "noticed by"),
        [
            (f"`{one['file']}`", one["bug"], f"`{one['noticed_by'].replace('|', ' or ')}`")
            for one in found["caught"]
        ],
    ),
}


# --- the page --------------------------------------------------------------------------------------------------------


def parts(page: str) -> dict[str, str]:
    """The levels' parts of the page, as they stand."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    found = re.split(r"^### Counted: (\w+)$", page[begin:end], flags=re.MULTILINE)
    return {
        name: f"### Counted: {name}\n\n{text.strip()}\n"
        for name, text in zip(found[1::2], found[2::2], strict=True)
    }


def updated(page: str, numbers: dict[str, Numbers]) -> str:
    """The page with the parts of these levels written anew."""
    now = parts(page) | {level: told(level, found) for level, found in numbers.items()}
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    block = "\n".join(now[level] for level in LEVELS if level in now)
    return f"{page[:begin]}\n\n{block}\n{page[end:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
