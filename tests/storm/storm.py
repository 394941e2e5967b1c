"""A storm of callers over real sockets, and the comparison of what two processes say of each of them.

**How requests of the gateway and of the simulator are matched.** An attempt's `x-request-id` is the gateway's own and
in no line of its log. So every caller of a storm asks for a model of its own (`m0`, `m1`, …, all on one backend), and
the model's name is what both write down: the gateway in the line of the request, the simulator in its record. Retries
are off and the simulator has more slots than the gateway uses, so one request makes at most one attempt and "full"
does not come. Both processes date what they saw, one by the wall clock and one by the machine's monotonic clock.

What must hold for each caller (`fate`):

| the gateway's line | the simulator's record |
|---|---|
| none, refused, or ended in the line (`attempts` 0) | none: the backend never heard of it |
| `ok` | `completed`, with every token |
| an upstream's fault | `failed` |
| ended by us (caller gone or stalled, deadline, shutdown) | ended within 100 ms of the line, or before it |
| the same, and no head of the answer had come | the same, or none: the request may have been on its way |
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.support import Call, Gateway, chat, post, until
from tests.simproc import SimProcess

FAULTS = {
    "status=500": "upstream_error",
    "cut=after:2": "upstream_reset",
    "drop=after:2": "upstream_reset",
    "end=after:2": "upstream_incomplete",
    "error=after:2": "upstream_error",
}
OURS = {"client_gone", "send_timeout", "deadline_exceeded", "shutdown", "queue_timeout", "displaced"}
TOLD_WITHIN_S = 0.1  # contract B4
BUSY_S = float(
    os.environ.get("STORM_SLACK_S", "0.9")
)  # what a busy machine adds between two processes' clocks
LISTEN, ESTABLISHED = "0A", "01"


@dataclass
class Plan:
    """What one caller does."""

    number: int
    script: str
    tokens: int
    stream: bool
    ending: str  # stay | leave | reset | half_close | stall
    after_s: float
    begins_at_s: float

    @property
    def model(self) -> str:
        return f"m{self.number}"


@dataclass
class Got:
    """What it got."""

    status: int | None = None
    whole: bool = False  # a whole answer, with the marker if it was a stream
    left: bool = False


def plans(seed: int, count: int, *, within_s: float) -> list[Plan]:
    """The storm of a seed: `count` callers that come within `within_s` seconds."""
    rng = random.Random(seed)
    return [_plan(rng, number, within_s) for number in range(count)]


def _plan(rng: random.Random, number: int, within_s: float) -> Plan:
    tokens = rng.choice((1, 5, 20, 60))
    script = f"tokens={tokens} first={rng.choice((0, 20, 200))}ms interval={rng.choice((0, 5, 20))}ms"
    stream = rng.random() < 0.7
    ending = rng.choice(("stay", "leave", "leave", "leave", "reset", "reset", "half_close", "stall"))
    if rng.random() < 0.1:
        script += " " + rng.choice(list(FAULTS)) if tokens > 2 and stream else " status=500"
    elif rng.random() < 0.1:
        script += " bytes=50KB"
    after_s = rng.choice((0.0, 0.01, 0.1, 0.5, 1.5)) * rng.random()
    return Plan(number, script, tokens, stream, ending, after_s, within_s * rng.random())


async def act(plan: Plan, port: int) -> Got:
    """One caller."""
    await asyncio.sleep(plan.begins_at_s)
    got = Got()
    try:
        call = await Call.open(port, post(chat(plan.script, stream=plan.stream, model=plan.model)))
    except OSError:
        return got
    try:
        reading = asyncio.ensure_future(_read(call, got, plan))
        try:
            if plan.ending == "stay":
                await reading
                return got
            await asyncio.wait((reading,), timeout=plan.after_s)
            if reading.done():
                await reading
                return got
            got.left = True
            await _leave(call, plan)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        call.reset()
    return got


async def _read(call: Call, got: Got, plan: Plan) -> None:
    try:
        answer = await call.answer()
    except (ConnectionError, asyncio.IncompleteReadError):
        return
    got.status = answer.status
    got.whole = not answer.cut and (not plan.stream or answer.status != 200 or b"data: [DONE]" in answer.body)


async def _leave(call: Call, plan: Plan) -> None:
    if plan.ending == "leave":
        call.leave()
    elif plan.ending == "half_close":
        call.half_close()
        await asyncio.sleep(0.05)
    elif plan.ending == "stall":
        call.pause()
        await asyncio.sleep(0.2)


async def storm(drawn: list[Plan], port: int) -> dict[str, Got]:
    """All of them; what each model's caller got."""
    got = await asyncio.gather(*(act(plan, port) for plan in drawn))
    return {plan.model: one for plan, one in zip(drawn, got, strict=True)}


# --- what is left --------------------------------------------------------------------------------------------------


def sockets(pid: int) -> Counter[str]:
    """The TCP sockets of a process by their state (kernel's numbers; 0A is listening)."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    states: Counter[str] = Counter()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                states[fields[3]] += 1
    return states


def files(pid: int) -> int:
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


async def quiet(gate: Gateway, sim: SimProcess, *, files_before: int, sim_files_before: int) -> None:
    """Nothing runs, drains or waits; no connection is left; as many files as before."""
    await nothing_held(gate, sim)
    only_listening = {LISTEN: 2}
    await until(lambda: sockets(gate.process.pid) == only_listening, show=lambda: sockets(gate.process.pid))
    await until(lambda: sockets(sim.pid) == {LISTEN: 1}, show=lambda: sockets(sim.pid))
    assert files(gate.process.pid) <= files_before
    assert files(sim.pid) <= sim_files_before


async def nothing_held(gate: Gateway, sim: SimProcess) -> None:
    """Nothing runs, drains or waits, and the only connections are those kept between the two for later."""
    await until(lambda: _idle(gate.state()), show=gate.state)
    await until(lambda: _at_rest(sim.state()), show=sim.state)

    def kept() -> bool:
        ours, theirs = sockets(gate.process.pid), sockets(sim.pid)
        return (
            ours.keys() | theirs.keys() <= {LISTEN, ESTABLISHED} and ours[ESTABLISHED] == theirs[ESTABLISHED]
        )

    await until(kept, show=lambda: (sockets(gate.process.pid), sockets(sim.pid)))


def _idle(state: Any) -> bool:
    slots = [backend["slots"] for backend in state["backends"]]
    return (
        all(s["running"] == s["draining"] == 0 for s in slots)
        and state["totals"]["waiting"] == state["totals"]["running"] == 0
        and state["connections"] <= 1
    )


def _at_rest(state: Any) -> bool:
    return bool(state["running"] == state["waiting"] == state["lingering"] == 0)


# --- what the two say ----------------------------------------------------------------------------------------------


def agree(drawn: list[Plan], got: dict[str, Got], lines: list[dict[str, Any]], state: Any) -> Counter[str]:
    """Hold the gateway's log against the simulator's records, caller by caller; returns the fates, counted."""
    logged: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line.get("event") in ("request", "refused") and line.get("model"):
            logged.setdefault(line["model"], []).append(line)
    heard: dict[str, list[dict[str, Any]]] = {}
    for record in state["requests"].values():
        if record["model"]:
            heard.setdefault(record["model"], []).append(record)
    to_wall_s = time.time() - time.monotonic() + state["epoch_at"]
    fates: Counter[str] = Counter()
    for plan in drawn:
        said = logged.get(plan.model, [])
        records = heard.get(plan.model, [])
        assert len(said) <= 1, said
        assert len(records) <= 1, records
        told = said[0] if said else None
        known = records[0] if records else None
        fates[fate(plan, got[plan.model], told, known, to_wall_s)] += 1
    assert sum(map(len, heard.values())) == state["received"]
    return fates


def fate(
    plan: Plan, got: Got, line: dict[str, Any] | None, record: dict[str, Any] | None, to_wall_s: float
) -> str:
    """See the module's table."""
    what = f"{plan} {got}\n{line}\n{record}"
    if line is None or line["event"] == "refused":
        assert record is None, what
        assert not got.whole or (got.status or 0) >= 400, what
        return "unheard" if line is None else f"refused: {line['code']}"
    cause = line["cause"]
    if line["attempts"] == 0:
        assert record is None, what
        assert cause in OURS, what
        return f"in the line: {cause}"
    if cause == "ok":
        assert record is not None, what
        assert record["state"] == "completed", what
        assert record["tokens"] == plan.tokens, what
        assert got.left or got.whole, what
    elif cause in OURS:
        assert got.left or cause != "client_gone", what
        if record is None:
            assert line["upstream_phase"] == "before_headers", what
            return f"{cause}, unread"
        ended_at = to_wall_s + (record["arrived_ms"] + record["ended_ms"]) / 1000
        assert ended_at <= when(line["at"]) + TOLD_WITHIN_S + BUSY_S, what
        assert record["state"] in ("aborted", "completed", "failed"), what
        return f"{cause}, {record['state']}"
    else:
        assert record is not None, what
        assert record["state"] == "failed", what
        expected = [code for script, code in FAULTS.items() if script in plan.script]
        assert cause in expected, what
        assert got.left or not got.whole or got.status != 200, what
    return str(cause)


def when(text: str) -> float:
    """Unix seconds of a line's `at`."""
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
