"""Who holds a slot, who waits, and what ends them."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import Any

import pytest

from tests.sim.rawclient import RawClient, contents
from tests.simproc import SimProcess

ENDLESS = "tokens=100000 interval=5ms"
BOUND_MS = 1000  # generous: the machine may be busy; on an idle one it is a few milliseconds


def record(state: dict[str, Any], request_id: str) -> dict[str, Any]:
    found: dict[str, Any] = state["requests"][request_id]
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["fin", "rst", "half"])
def test_a_disconnect_stops_the_generation(sim: SimProcess, how: str, stream: bool) -> None:
    with RawClient(sim.port) as client:
        client.chat(ENDLESS, request_id="gone", stream=stream)
        if stream:
            client.read_head()
            while len(contents(client.body)) < 3:
                client.read_chunk()
        else:
            sim.wait(lambda state: record(state, "gone")["started_ms"] is not None)
        client.leave(how)
        left_at = time.monotonic()
        state = sim.wait(lambda state: state["running"] == 0)
    seen = record(state, "gone")
    assert seen["state"] == "aborted"
    # `epoch_at` is on the machine's monotonic clock: the stop can be dated from outside.
    aborted_at = state["epoch_at"] + (seen["arrived_ms"] + seen["aborted_ms"]) / 1000
    assert -50 < (aborted_at - left_at) * 1000 < BOUND_MS
    assert seen["aborted_ms"] - seen["left_ms"] < BOUND_MS
    assert (state["aborted"], state["aborted_waiting"]) == (1, 0)
    made = state["tokens_made"]
    assert sim.state()["tokens_made"] == made


def test_a_client_that_leaves_before_its_first_token(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("first=1000s", request_id="early").read_head()
    state = sim.wait(lambda state: state["aborted"] == 1)
    assert record(state, "early")["first_byte_ms"] is None
    assert state["tokens_made"] == 0


def test_leaving_after_the_end_is_no_abort(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("tokens=3", request_id="done").read_all()
    state = sim.state()
    assert record(state, "done")["state"] == "completed"
    assert record(state, "done")["left_ms"] is None
    assert (state["aborted"], state["completed"], state["running"]) == (0, 1, 0)


def test_linger_holds_the_slots_and_goes_on_making_tokens(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat(ENDLESS + " linger=400ms", request_id="zombie", n=4).read_head().read_chunk()
    state = sim.wait(lambda state: record(state, "zombie")["lingering"])
    assert (state["running"], state["lingering"]) == (4, 4)
    assert record(state, "zombie")["state"] == "running"
    with RawClient(sim.port) as client:
        client.chat("tokens=1", request_id="next").read_all()
    state = sim.state()
    zombie = record(state, "zombie")
    assert zombie["state"] == "aborted"
    assert zombie["aborted_ms"] - zombie["left_ms"] >= 395
    assert record(state, "next")["started_ms"] > 100
    assert not zombie["lingering"]
    assert state["lingering"] == 0
    assert zombie["tokens"] >= 4 * 20  # some 80 steps of 4 in 400 ms, fewer on a busy machine


def test_ignore_disconnect_goes_on_to_the_natural_end(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("tokens=30 interval=10ms ignore_disconnect", request_id="deaf").read_head().read_chunk()
    sim.wait(lambda state: record(state, "deaf")["lingering"])
    state = sim.wait(lambda state: state["running"] == 0)
    deaf = record(state, "deaf")
    assert (deaf["state"], deaf["tokens"], state["completed"]) == ("completed", 30, 1)
    assert deaf["left_ms"] < deaf["ended_ms"]


def test_the_queue_is_bounded_and_served_in_order(sim: SimProcess) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(sim.port)) for _ in range(9)]
        for number, client in enumerate(clients):
            client.chat("tokens=2 hang=after:1", request_id=str(number))
            sim.wait(lambda state, number=number: state["received"] == number + 1)  # type: ignore[misc]
        state = sim.state()
        assert (state["running"], state["waiting"], state["refused"]) == (4, 3, 2)
        assert [record(state, str(n))["state"] for n in range(9)] == (
            ["running"] * 4 + ["waiting"] * 3 + ["refused"] * 2
        )
        for client in clients[7:]:
            assert client.read_head().status == 429
        assert clients[4].silent(0.05)
        clients[0].socket.close()
        clients[4].read_head().read_chunk()
        state = sim.wait(lambda state: state["waiting"] == 2)
        assert record(state, "4")["state"] == "running"
        assert (state["running"], state["peak_running"], state["peak_waiting"]) == (4, 4, 3)
    sim.wait(lambda state: state["running"] == state["waiting"] == 0)


def test_a_waiter_that_leaves_gives_its_place_back(sim: SimProcess) -> None:
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(RawClient(sim.port)).chat("hang=first", request_id=f"r{number}").read_head()
        waiter = stack.enter_context(RawClient(sim.port))
        waiter.chat("tokens=1", request_id="waiter")
        sim.wait(lambda state: state["waiting"] == 1)
        waiter.leave("fin")
        state = sim.wait(lambda state: state["waiting"] == 0)
        assert record(state, "waiter")["state"] == "aborted"
        assert record(state, "waiter")["started_ms"] is None
        assert (state["aborted"], state["aborted_waiting"], state["started"]) == (1, 1, 4)


def test_a_waiter_that_is_ignored_runs_for_nobody(sim: SimProcess) -> None:
    with ExitStack() as stack:
        blocker = stack.enter_context(RawClient(sim.port))
        blocker.chat("hang=first", n=4).read_head()
        with RawClient(sim.port) as waiter:
            waiter.chat("tokens=3 ignore_disconnect", request_id="ghost")
            sim.wait(lambda state: state["waiting"] == 1)
        sim.wait(lambda state: record(state, "ghost")["lingering"])
        blocker.leave("fin")
        state = sim.wait(lambda state: state["running"] == 0)
    assert record(state, "ghost")["state"] == "completed"
    assert record(state, "ghost")["tokens"] == 3


def test_a_slow_reader_does_not_hold_the_slot(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("tokens=40 bytes=1MB", request_id="slow").read_head()
        state = sim.wait(lambda state: state["completed"] == 1)
        assert (state["running"], record(state, "slow")["tokens"]) == (0, 40)
        assert len(contents(client.read_all().body)) == 40
        assert client.ended == "complete"


def test_a_pause_stops_the_time_and_nothing_is_lost(sim: SimProcess) -> None:
    with RawClient(sim.port) as client, RawClient(sim.port) as gone, RawClient(sim.port) as late:
        client.chat("tokens=20 interval=10ms").read_head().read_chunk()
        gone.chat(ENDLESS, request_id="gone").read_head().read_chunk()
        assert sim.pause()["paused"]
        made = sim.state()["tokens_made"]
        late.chat("tokens=2", request_id="late").read_head()
        assert late.status == 200
        assert late.silent(0.1)
        gone.leave("fin")
        state = sim.wait(lambda state: record(state, "gone")["left_ms"] is not None)
        assert (state["tokens_made"], state["running"]) == (made, 3)
        sim.resume()
        assert contents(late.read_all().body)
        assert len(contents(client.read_all().body)) == 20
        sim.wait(lambda state: state["running"] == 0 and state["aborted"] == 1)


def test_reset_breaks_what_runs_and_forgets_what_was(sim: SimProcess) -> None:
    with RawClient(sim.port) as running, RawClient(sim.port) as waiting:
        running.chat(ENDLESS, n=4).read_head()
        waiting.chat("tokens=1")
        sim.wait(lambda state: state["waiting"] == 1)
        sim.pause()
        state = sim.reset()
        assert running.read_all().ended == "reset"
        assert waiting.read_all().ended == "reset"
    assert not state["paused"]
    counters = ("running", "waiting", "received", "aborted", "tokens_made", "peak_running")
    assert {name: state[name] for name in counters} == dict.fromkeys(counters, 0)
    assert sim.state()["requests"] == {}
    with RawClient(sim.port) as client:
        assert client.chat("tokens=1").read_all().ended == "complete"


def test_state_by_id_and_without_requests(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        for request_id in ("a", "b", "a"):
            client.chat("tokens=1", request_id=request_id).read_all()
        client.chat("tokens=1").read_all()
    assert sim.state()["ids"] == ["a", "b", "a#3", "anonymous"]
    assert sim.state("a")["ids"] == ["a", "a#3"]
    assert "ids" not in sim.state(requests=False)


def test_the_books_add_up_under_a_mixed_load(sim: SimProcess) -> None:
    scripts = ("tokens=3", "tokens=9 interval=1ms", "cut=after:1", "error=first", "full", "status=500", "end")
    for round_ in range(6):
        with ExitStack() as stack:
            for number in range(14):
                client = stack.enter_context(RawClient(sim.port))
                client.chat(
                    scripts[number % len(scripts)], n=1 + (number + round_) % 2, stream=number % 3 > 0
                )
    state = sim.wait(lambda state: state["running"] == state["waiting"] == 0 and state["received"] == 84)
    ends = ("completed", "failed", "aborted", "refused", "invalid")
    assert sum(state[end] for end in ends) == 84
    started = state["completed"] + state["failed"] + state["aborted"] - state["aborted_waiting"]
    assert state["started"] == started
    assert state["peak_running"] <= 4
    assert state["peak_waiting"] <= 3
    json.dumps(state)


def test_connections_are_counted(sim: SimProcess) -> None:
    before = sim.state()["connections"]
    with RawClient(sim.port) as client:
        for _ in range(3):
            client.chat("tokens=1").read_all()
        state = sim.state()
    assert state["connections"] - before == 1 + 1  # the client's, and the one of the second reading
    assert state["connections_open"] >= 2
