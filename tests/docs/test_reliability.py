"""The page on reliability is what its command writes, of the worlds, shapes, targets and bugs that there are now."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS, rows, section
from tests.fuzz.targets import TARGETS
from tests.prove import invariants
from tests.prove.explore import LARGE, SMALL
from tests.prove.levels import LEVELS
from tests.prove.mutations import MUTATIONS
from tests.prove.report import SUMMARIES, TABLES, parts, told, updated
from tests.runtime.test_injection import SHAPES

PAGE = DOCS / "reliability.md"
AGAIN = "run `python -m tests.prove.report --only {}`"


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return parts(PAGE.read_text())


def test_every_level_is_told(written: dict[str, str]) -> None:
    assert list(written) == list(LEVELS) == list(SUMMARIES) == list(TABLES)
    assert [row[0] for row in rows(section(PAGE, "The levels"))] == list(LEVELS)
    for level, text in written.items():
        assert re.search(r"\*\*[\d,]+ [\w -]+\*\*", text), level
        assert re.search(
            r"^Run on \d{4}-\d\d-\d\d in [\d,]+ s \(Python [\d.]+, \d+ processors\)\.$", text, re.M
        )
        assert len({len(row) for row in rows(text)}) == 1, level


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("exploration", [scope.name for scope in SMALL + LARGE]),
        ("injection", list(SHAPES)),
        ("fuzzing", list(TARGETS)),
    ],
)
def test_what_is_listed_is_what_there_is(level: str, expected: list[str], written: dict[str, str]) -> None:
    assert [row[0] for row in rows(written[level])] == expected, AGAIN.format(level)


def test_the_planted_bugs_are_those_of_the_list(written: dict[str, str]) -> None:
    listed = [(row[0].strip("`"), row[1]) for row in rows(written["mutants"])]
    assert listed == [(bug.path, bug.name) for bug in MUTATIONS], AGAIN.format("mutants")
    assert f"**{len(MUTATIONS)} of {len(MUTATIONS)}** planted bugs noticed." in written["mutants"]


def test_every_invariant_has_its_line() -> None:
    """The numbers in the code are those of the table."""
    listed = {row[0] for row in rows(section(PAGE, "What is checked after every step"))}
    checks = [*invariants.CHECKS, invariants.forgetting_changes_nothing, invariants.replay_is_identical]
    numbered = {match[1] for check in checks if (match := re.match(r"(\d+)\b", check.__doc__ or ""))}
    assert len(numbered) == len(checks)
    assert numbered <= listed


def test_a_part_is_written_anew_and_the_others_stay() -> None:
    page = PAGE.read_text()
    found = {"bugs": 1, "caught": [{"file": "a.py", "bug": "b", "noticed_by": "c[x|y]"}], "seconds": 1.0}
    again = updated(page, {"mutants": found})
    assert parts(again)["mutants"] == told("mutants", found)
    assert {**parts(again), "mutants": ""} == {**parts(page), "mutants": ""}
    assert updated(again, {}) == again
    assert updated(page, {}) == page
