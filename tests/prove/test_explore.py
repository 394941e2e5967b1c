"""Small worlds explored whole, in every run; with `PROVE=1` the large ones, too."""

from __future__ import annotations

import os

import pytest

from tests.prove.explore import LARGE, SMALL, Scope, explore


@pytest.mark.parametrize("scope", SMALL, ids=lambda scope: scope.name)
def test_small_worlds(scope: Scope) -> None:
    found = explore(scope)
    assert found.whole
    assert found.states > 100
    assert found.decided["granted"]


@pytest.mark.skipif(not os.environ.get("PROVE"), reason="minutes: PROVE=1")
@pytest.mark.parametrize("scope", LARGE, ids=lambda scope: scope.name)
def test_large_worlds(scope: Scope) -> None:
    assert explore(scope).whole
