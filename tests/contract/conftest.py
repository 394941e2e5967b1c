"""One simulator process for all contract tests of a worker; each test starts its own gateway before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simproc import SimProcess, sim_process


@pytest.fixture(scope="session")
def sim_session() -> Iterator[SimProcess]:
    with sim_process(slots=64) as running:
        yield running


@pytest.fixture
def sim(sim_session: SimProcess) -> SimProcess:
    sim_session.reset()
    return sim_session


@pytest.fixture(scope="session")
def second_sim_session() -> Iterator[SimProcess]:
    with sim_process(slots=64, seed=1) as running:
        yield running


@pytest.fixture
def second_sim(second_sim_session: SimProcess) -> SimProcess:
    second_sim_session.reset()
    return second_sim_session
