"""What a well-behaved answer looks like on the wire."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.sim.rawclient import RawClient, chat_body, contents, data_events
from tests.simproc import SimProcess, sim_process


def stream(sim: SimProcess, script: str = "", **fields: Any) -> RawClient:
    with RawClient(sim.port) as client:
        return client.chat(script, **fields).read_all()


def test_the_same_request_and_seed_give_the_same_bytes_also_in_another_process(sim: SimProcess) -> None:
    first = stream(sim, "tokens=30").body
    assert stream(sim, "tokens=30").body == first
    sim.reset()
    assert stream(sim, "tokens=30").body == first
    assert stream(sim, "tokens=31").body != first
    with sim_process(seed=5) as same, sim_process(seed=6) as other:
        assert stream(same, "tokens=30").body == first
        assert stream(other, "tokens=30").body != first


def test_a_stream_has_role_contents_reason_and_marker(sim: SimProcess) -> None:
    client = stream(sim, "tokens=20")
    assert client.status == 200
    assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert client.headers["transfer-encoding"] == "chunked"
    assert client.ended == "complete"
    role, *middle, reason, marker = data_events(client.body)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["finish_reason"] for event in middle] == [None] * 20
    assert reason["choices"][0]["finish_reason"] == "stop"
    assert marker == "[DONE]"
    assert {event["id"] for event in (role, *middle, reason)} == {role["id"]}


def test_a_plain_answer_has_the_same_content_as_the_stream(sim: SimProcess) -> None:
    with sim_process(seed=5, script="tokens=9") as by_default, RawClient(by_default.port) as client:
        plain = client.send("/v1/chat/completions", chat_body(stream=False)).document()
        assert len(plain["choices"][0]["message"]["content"].split(" ")) == 9
    with RawClient(sim.port) as client:
        plain = client.chat("tokens=7", stream=False).document()
    assert client.headers["content-type"] == "application/json"
    assert plain["object"] == "chat.completion"
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert plain["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_paths_work_with_and_without_v1(sim: SimProcess, prefix: str) -> None:
    with RawClient(sim.port) as client:
        assert client.send(prefix + "/chat/completions", chat_body()).read_all().status == 200
    assert [model["id"] for model in sim.call("GET", prefix + "/models")["data"]] == ["demo", "org/other"]
    assert sim.call("GET", prefix + "/models/org/other")["id"] == "org/other"


def test_health_and_version(sim: SimProcess) -> None:
    assert sim.call("GET", "/health") == {"status": "ok"}
    assert sim.call("GET", "/version")["engine"] == "inferencemesh-sim"


def test_one_connection_serves_many_requests(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        for _ in range(5):
            assert client.chat("tokens=3").read_all().ended == "complete"
            assert client.chat("tokens=3", stream=False).read_all().ended == "complete"
    assert sim.state()["completed"] == 10


def test_choices_take_slots_and_have_contents_of_their_own(sim: SimProcess) -> None:
    client = stream(sim, "tokens=6", n=3)
    texts = [contents(client.body, choice) for choice in range(3)]
    assert [len(text) for text in texts] == [6, 6, 6]
    assert texts[0] != texts[1] != texts[2]
    reasons = [
        event["choices"][0]["index"]
        for event in data_events(client.body)
        if isinstance(event, dict) and event["choices"][0]["finish_reason"]
    ]
    assert reasons == [0, 1, 2]
    state = sim.state()
    assert state["peak_running"] == 3
    assert state["tokens_made"] == 18
    with RawClient(sim.port) as client:
        wide = client.chat(n=5).read_all()
        assert wide.status == 400
        assert "4 slots" in wide.document()["error"]["message"]


def test_usage_chunk_when_asked_for(sim: SimProcess) -> None:
    client = stream(sim, "tokens=4", stream_options={"include_usage": True})
    *_, reason, usage, marker = data_events(client.body)
    assert reason["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert marker == "[DONE]"


def test_max_tokens_ends_the_answer_by_length(sim: SimProcess) -> None:
    client = stream(sim, "tokens=40 hang=after:20", max_tokens=5)
    assert len(contents(client.body)) == 5
    assert data_events(client.body)[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("size", [2000, 1_000_000])
def test_bytes_sets_the_size_of_events(sim: SimProcess, size: int) -> None:
    client = stream(sim, f"tokens=3 bytes={size}")
    assert client.ended == "complete"
    sizes = [len(event) + 2 for event in client.body.split(b"\n\n")[1:4]]
    assert sizes == [size] * 3


def test_crlf(sim: SimProcess) -> None:
    body = stream(sim, "tokens=5 crlf").body
    assert body.count(b"\n") == body.count(b"\r\n")
    assert len(contents(body, end=b"\r\n\r\n")) == 5
    assert len(data_events(body, b"\r\n\r\n")) == 8


def test_comments_before_each_event(sim: SimProcess) -> None:
    body = stream(sim, "tokens=5 comments").body
    assert body.count(b": keep-alive\n\n") == 5
    assert len(contents(body)) == 5


def test_comments_at_an_interval_also_in_a_silence(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("tokens=2 hang=after:1 comments=10ms").read_head()
        while client.body.count(b": keep-alive\n\n") < 5:
            assert client.read_chunk()
        assert len(contents(client.body)) == 1


@pytest.mark.parametrize("script", ["split", "split=1", "split=7"])
def test_split_writes_pieces_that_cut_characters(sim: SimProcess, script: str) -> None:
    client = stream(sim, f"tokens=8 {script}")
    assert client.ended == "complete"
    assert any(chunk[0] & 0xC0 == 0x80 for chunk in client.chunks)
    assert len(client.chunks) > 30
    assert len(contents(client.body)) == 8
    assert data_events(client.body)[-1] == "[DONE]"


def test_nofinish_and_nodone(sim: SimProcess) -> None:
    assert data_events(stream(sim, "tokens=2 nofinish").body)[-1] == "[DONE]"
    unmarked = stream(sim, "tokens=2 nodone")
    assert unmarked.ended == "complete"
    assert data_events(unmarked.body)[-1]["choices"][0]["finish_reason"] == "stop"
    neither = stream(sim, "tokens=2 nodone nofinish")
    assert neither.ended == "complete"
    assert len(data_events(neither.body)) == 3


def test_an_answer_without_tokens(sim: SimProcess) -> None:
    role, reason, marker = data_events(stream(sim, "tokens=0").body)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert reason["choices"][0]["finish_reason"] == "stop"
    assert marker == "[DONE]"


def test_events_come_when_they_are_due(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("tokens=40 first=60ms interval=10ms").read_head()
        assert client.head_s < 5
        client.read_all()
    body = client.body
    assert len(contents(body)) == 40
    # The role shares a write with the first token; each token has its own, but for those that were late together.
    token = -1
    for chunk, at in zip(client.chunks, client.times, strict=True):
        token += chunk.count(b'"content":') - chunk.count(b'"role"')
        assert at >= 0.06 + token * 0.01 - 0.003
    record = next(iter(sim.state()["requests"].values()))
    assert record["first_byte_ms"] >= 55
    assert record["ended_ms"] >= 445


def test_the_head_comes_before_the_first_token(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("tokens=2 first=300ms").read_head()
        assert client.status == 200
        assert not client.received
        assert client.read_all().times[0] >= 0.29


def test_early_role_sends_the_role_with_the_head(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("tokens=2 first=300ms early_role").read_head()
        client.read_to(b'"role"')
        assert contents(client.body) == []
        client.read_all()
    assert client.times[1] >= 0.29
    assert client.body.count(b'"role"') == 1


def test_a_plain_answer_takes_the_same_time(sim: SimProcess) -> None:
    with RawClient(sim.port) as client:
        client.chat("tokens=5 first=60ms interval=20ms", stream=False).read_all()
    assert client.head_s >= 0.139
    assert len(client.document()["choices"][0]["message"]["content"].split(" ")) == 5


def test_bad_requests_get_the_error_shape_and_are_counted(sim: SimProcess) -> None:
    for body, status in (
        (b"{", 400),
        (chat_body("tokns=5"), 400),
        (chat_body(model="nope"), 404),
        (chat_body(messages=[]), 400),
    ):
        with RawClient(sim.port) as client:
            client.send("/v1/chat/completions", body).read_all()
            assert client.status == status
            assert client.document()["error"]["code"] == status
    state = sim.state()
    assert (state["invalid"], state["received"], state["started"]) == (4, 4, 0)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/sim/state", 405)],
)
def test_unknown_paths_and_methods(sim: SimProcess, method: str, path: str, status: int) -> None:
    connection = http.client.HTTPConnection(sim.host, sim.port, timeout=20)
    connection.request(method, path, body=b"")
    response = connection.getresponse()
    assert response.status == status
    assert json.loads(response.read())["error"]["code"] == status
    connection.close()
