"""docs/configuration.md says what the schema says."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferencemesh.config.outline import entries
from inferencemesh.config.reference import reference, updated
from inferencemesh.config.unbuilt import UNBUILT

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_holds_the_reference_of_this_schema():
    text = PAGE.read_text()
    assert updated(text) == text, "run: python -m inferencemesh.config.reference docs/configuration.md"


def test_every_key_has_a_row_and_every_unbuilt_one_says_so():
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) == len(list(entries()))
    assert sum("not built yet" in row for row in rows) == sum(
        not row.path.startswith("models[].stream") for row in UNBUILT
    )


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="lacks the mark"):
        updated("# Configuration\n")
