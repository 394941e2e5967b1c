from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simproc import SimProcess, sim_process


@pytest.fixture(scope="session")
def shared_sim() -> Iterator[SimProcess]:
    with sim_process(slots=4, queue=3, seed=5, models=("demo", "org/other")) as sim:
        yield sim


@pytest.fixture
def sim(shared_sim: SimProcess) -> SimProcess:
    """A model server of 4 slots with a queue of 3, as freshly started."""
    shared_sim.reset()
    return shared_sim
