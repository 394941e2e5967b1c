"""Small worlds explored whole, in every run; with `PROVE=1` the large ones, too."""

from __future__ import annotations

import os

import pytest

from tests.prove.explore import LARGE, SMALL, Scope, explore


@pytest.mark.parametrize("scope", SMALL + LARGE if os.environ.get("PROVE") else SMALL, ids=lambda s: s.name)
def test_every_interleaving(scope: Scope) -> None:
    found = explore(scope)
    assert found.whole
    assert found.states > 100
    assert found.decided["granted"]
