"""Hundreds of callers that leave at any moment, over real sockets, with gateway and model server in processes of
their own: nothing may be left of them, and both must tell the same story of each (`storm`)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import Any

import pytest

from tests.contract.support import drive, gateway, until
from tests.simproc import sim_process
from tests.storm.storm import agree, files, nothing_held, plans, quiet, sockets, storm

SLOTS = 12


def document(url: str, count: int, **more: Any) -> dict[str, Any]:
    """A gateway with one model for each caller."""
    backend = {
        "name": "sim",
        "url": url,
        "engine": "sim",
        "slots": SLOTS,
        "drain": {"grace": "50ms"},
        "health": {"interval": "1h"},
    }
    return {
        "backends": [backend],
        "models": [{"name": f"m{number}", "backends": ["sim"]} for number in range(count)],
        "admission": {"queue": {"max_waiting": 4, "max_waiting_total": 60, "timeout": "3s"}},
        "timeouts": {"cleanup": "2s", "send": "2s"},
        "retries": {"attempts": 1},
        **more,
    }


def names(count: int) -> tuple[str, ...]:
    return tuple(f"m{number}" for number in range(count))


def one_storm(seed: int, count: int, within_s: float, *, to_the_last_file: bool) -> Counter[str]:
    with sim_process(slots=64, models=names(count)) as sim, gateway(document(sim.url, count)) as gate:
        files_before, sim_files_before = files(gate.process.pid), files(sim.pid)
        drawn = plans(seed, count, within_s=within_s)

        async def run() -> dict[str, Any]:
            got = await storm(drawn, gate.port)
            if to_the_last_file:
                await quiet(gate, sim, files_before=files_before, sim_files_before=sim_files_before)
            else:
                await nothing_held(gate, sim)
            return got

        got = drive(run())
        state = sim.state()
        assert state["peak_running"] <= SLOTS, "A1: more worked there than was allowed"
        assert gate.state()["backends"][0]["breaker"] == "closed"
        gate.stop()
        fates = agree(drawn, got, gate.lines, state)
        assert fates["ok"] > 0, fates
        assert fates["client_gone, aborted"] > 0, fates
        assert sum(n for name, n in fates.items() if name.startswith("in the line")) > 0, fates
        return fates


def test_L12_C14_a_small_storm_leaves_nothing_and_both_sides_agree():
    one_storm(seed=1, count=150, within_s=1.0, to_the_last_file=False)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(int(os.environ.get("PROVE") or 0) * 5 + 1))
def test_L12_C14_a_thousand_leave_at_random_times(seed: int):
    fates = one_storm(seed=100 + seed, count=1000, within_s=10.0, to_the_last_file=True)
    assert sum(fates.values()) == 1000


@pytest.mark.parametrize("waiters", ["serve", pytest.param("refuse", marks=pytest.mark.slow)])
def test_B7_sigterm_in_the_middle_of_a_storm(waiters: str):
    count = 120
    server = {"shutdown_grace": "700ms", "shutdown_waiters": waiters}
    with (
        sim_process(slots=64, models=names(count)) as sim,
        gateway(document(sim.url, count, server=server)) as gate,
    ):
        drawn = plans(7, count, within_s=1.2)
        for plan in drawn:
            plan.script = plan.script.replace("interval=0ms", "interval=20ms")

        async def run() -> dict[str, Any]:
            running = asyncio.ensure_future(storm(drawn, gate.port))
            await until(lambda: sim.state(requests=False)["received"] > 30)
            gate.process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(gate.process.wait, 20)
            assert code == 0
            got = await running
            await until(lambda: sim.state(requests=False)["running"] == 0, show=sim.state)
            await until(lambda: sockets(sim.pid) == {"0A": 1}, show=lambda: sockets(sim.pid))
            return got

        got = drive(run())
        fates = agree(drawn, got, gate.lines, sim.state())
        assert sum(fates.values()) == count
        assert fates["unheard"] > 0, "it did not come in the middle"
        assert fates["ok"] + fates["client_gone, aborted"] > 0, fates
