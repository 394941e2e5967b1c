"""Every target over its corpus, and over a fixed number of mutants: what a fuzzer would try first."""

from __future__ import annotations

import os
from itertools import islice

import pytest

from tests.fuzz.corpus import CORPUS, mutants
from tests.fuzz.targets import TARGETS

MUTANTS = 20_000 if os.environ.get("PROVE") else 400


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus(target: str) -> None:
    for data in CORPUS[target]:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.timeout(300)
def test_mutants(target: str) -> None:
    for data in islice(mutants(target, 1), MUTANTS):
        try:
            TARGETS[target](data)
        except AssertionError as broken:
            raise AssertionError(f"{target} broke on {data!r}") from broken
