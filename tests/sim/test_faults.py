"""Each scripted fault over a real socket, in streams and in plain answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sim.rawclient import RawClient, chat_body, contents, data_events
from tests.simproc import SimProcess


def run(sim: SimProcess, script: str, **fields: Any) -> RawClient:
    with RawClient(sim.port) as client:
        return client.chat(script, **fields).read_all()


def end_state(sim: SimProcess) -> str:
    state = sim.wait(lambda state: state["running"] == 0)
    (record,) = state["requests"].values()
    return str(record["state"])


@pytest.mark.parametrize("stream", [True, False])
def test_status_fails_before_the_head(sim: SimProcess, stream: bool) -> None:
    client = run(sim, "status=503 retry_after=7 first=50ms", stream=stream)
    assert client.status == 503
    assert client.headers["retry-after"] == "7"
    assert client.head_s >= 0.049
    assert client.document()["error"]["type"] == "ServiceUnavailableError"
    assert end_state(sim) == "failed"


@pytest.mark.parametrize("stream", [True, False])
def test_full_is_refused_without_a_slot(sim: SimProcess, stream: bool) -> None:
    client = run(sim, "full", stream=stream)
    assert client.status == 429
    assert "retry-after" not in client.headers
    assert client.document()["error"]["code"] == 429
    assert run(sim, "full retry_after=2").headers["retry-after"] == "2"
    state = sim.state()
    assert (state["refused"], state["started"], state["peak_running"]) == (2, 0, 0)


@pytest.mark.parametrize("fault", ["full", "status=500", "cut=first"])
def test_times_limits_a_fault_to_the_first_of_the_same_body(sim: SimProcess, fault: str) -> None:
    good = [run(sim, f"tokens=2 {fault} times=2").body.endswith(b"[DONE]\n\n") for _ in range(4)]
    assert good == [False, False, True, True]
    assert not run(sim, f"tokens=3 {fault} times=2").body.endswith(b"[DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
def test_hang_before_the_head(sim: SimProcess, stream: bool) -> None:
    with RawClient(sim.port) as client:
        client.chat("hang=headers", stream=stream)
        assert client.silent()
        assert sim.state()["running"] == 1
    sim.wait(lambda state: state["aborted"] == 1 and state["running"] == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_hang_before_the_first_event(sim: SimProcess, stream: bool) -> None:
    with RawClient(sim.port) as client:
        client.chat("hang=first", stream=stream).read_head()
        assert client.status == 200
        assert client.silent()
        assert not client.received
        assert sim.state()["running"] == 1
    sim.wait(lambda state: state["aborted"] == 1 and state["running"] == 0)


def test_hang_in_a_stream(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("tokens=9 hang=after:3 interval=5ms").read_head()
        while len(contents(client.body)) < 3:
            assert client.read_chunk()
        assert client.silent()
        (record,) = sim.state()["requests"].values()
        assert (record["state"], record["tokens"]) == ("running", 3)
    sim.wait(lambda state: state["aborted"] == 1 and state["running"] == 0)


@pytest.mark.parametrize(
    ("script", "seen"),
    [("tokens=3 hang=after:0", b'"role"'), ("tokens=3 hang=finish", b'"finish_reason":"stop"')],
)
def test_hang_at_the_edges(sim: SimProcess, script: str, seen: bytes) -> None:
    with RawClient(sim.port) as client:
        client.chat(script).read_head().read_to(seen)
        assert client.silent(0.05)
        assert b"[DONE]" not in client.body
        assert len(contents(client.body)) == (0 if "after" in script else 3)


def test_hang_in_the_body_of_a_plain_answer(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("hang=after:5", stream=False).read_head()
        client.silent()
        assert client.silent(0.05)
        assert 0 < len(client.received) < int(client.headers["content-length"])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("kind", "ended"), [("cut", "reset"), ("drop", "eof")])
def test_cut_and_drop_before_the_head(sim: SimProcess, kind: str, ended: str, stream: bool) -> None:
    client = run(sim, f"{kind}=headers", stream=stream)
    assert (client.status, client.ended) == (0, ended)
    assert end_state(sim) == "failed"


@pytest.mark.parametrize(("kind", "ended"), [("cut", "reset"), ("drop", "eof")])
@pytest.mark.parametrize(
    ("where", "tokens", "last"),
    [
        ("first", 0, b""),
        ("after:0", 0, b'"finish_reason":null}]}\n\n'),
        ("after:3", 3, b'"finish_reason":null}]}\n\n'),
        ("finish", 5, b'"finish_reason":"stop"}]}\n\n'),
    ],
)
@pytest.mark.parametrize("pace", ["", "interval=3ms first=3ms", "split"])
def test_cut_and_drop_in_a_stream(
    sim: SimProcess, kind: str, ended: str, where: str, tokens: int, last: bytes, pace: str
) -> None:
    client = run(sim, f"tokens=5 {kind}={where} {pace}")
    assert (client.status, client.ended) == (200, ended)
    assert len(contents(client.body)) == tokens
    assert client.body.endswith(last)
    assert end_state(sim) == "failed"


@pytest.mark.parametrize(("kind", "ended"), [("cut", "reset"), ("drop", "eof")])
@pytest.mark.parametrize("where", ["first", "after:3", "finish"])
def test_cut_and_drop_in_a_plain_answer(sim: SimProcess, kind: str, ended: str, where: str) -> None:
    client = run(sim, f"tokens=5 {kind}={where}", stream=False)
    assert (client.status, client.ended) == (200, ended)
    assert (len(client.received) == 0) == (where == "first")
    assert len(client.received) < int(client.headers["content-length"])


def test_cut_sends_large_events_whole_before_it(sim: SimProcess) -> None:
    client = run(sim, "tokens=5 bytes=1MB cut=after:3")
    assert client.ended == "reset"
    assert len(contents(client.body)) == 3


def test_end_without_any_event(sim: SimProcess) -> None:
    client = run(sim, "end")
    assert (client.status, client.ended, client.body) == (200, "complete", b"")
    assert end_state(sim) == "failed"


@pytest.mark.parametrize(
    ("where", "events"), [("first", 0), ("after:0", 1), ("after:3", 4), ("after:5", 6), ("finish", 7)]
)
@pytest.mark.parametrize("pace", ["", "interval=3ms", "split"])
def test_end_is_clean_and_without_marker(sim: SimProcess, where: str, events: int, pace: str) -> None:
    client = run(sim, f"tokens=5 end={where} {pace}")
    assert (client.status, client.ended) == (200, "complete")
    assert len(data_events(client.body)) == events
    assert b"[DONE]" not in client.body


def test_end_of_a_plain_answer_is_half_a_document(sim: SimProcess) -> None:
    client = run(sim, "tokens=5 end=after:2", stream=False)
    assert (client.status, client.ended) == (200, "complete")
    with pytest.raises(json.JSONDecodeError):
        json.loads(client.body)


@pytest.mark.parametrize(("where", "tokens"), [("first", 0), ("after:0", 0), ("after:3", 3), ("finish", 5)])
def test_error_event_then_the_marker(sim: SimProcess, where: str, tokens: int) -> None:
    client = run(sim, f"tokens=5 error={where} error_code=503")
    assert (client.status, client.ended) == (200, "complete")
    *before, error, marker = data_events(client.body)
    assert error["error"]["code"] == 503
    assert marker == "[DONE]"
    assert len(contents(client.body)) == tokens
    assert (before == []) == (where == "first")
    assert end_state(sim) == "failed"


def test_error_without_the_marker(sim: SimProcess) -> None:
    *_, error = data_events(run(sim, "tokens=5 error=after:2 nodone").body)
    assert error["error"]["code"] == 500


def test_error_in_a_plain_answer_comes_with_status_200(sim: SimProcess) -> None:
    client = run(sim, "tokens=5 error=after:2", stream=False)
    assert client.status == 200
    assert client.document()["error"]["code"] == 500


def test_a_script_of_the_server_applies_to_all_and_is_overridden(sim: SimProcess) -> None:
    sim.script("tokens=3 status=502")
    with RawClient(sim.port) as client:
        assert client.send("/v1/chat/completions", chat_body()).read_all().status == 502
        assert len(contents(client.chat("error=after:1").read_all().body)) == 1
    sim.script("")
    with RawClient(sim.port) as client:
        client.send("/v1/chat/completions", chat_body()).read_all()
    assert len(contents(client.body)) == 16
    with pytest.raises(AssertionError, match="bad sim script"):
        sim.script("nonsense")
