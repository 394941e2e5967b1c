"""Contract G: bad input costs no slot, harms nobody and gets a clear 4xx."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.contract.support import Answer, Call, adds_up, ask, chat, drive, gateway, idle, mesh, post, until

MESSAGES = '"messages":[{"role":"user","content":"x"}]'

BAD_BODIES = {
    "empty": (b"", "invalid_json"),
    "not-json": (b"hello", "invalid_json"),
    "cut": (b'{"model":"demo",', "invalid_json"),
    "array": (b"[1]", "invalid_request"),
    "string": (b'"demo"', "invalid_request"),
    "nan": (('{"model":"demo","temperature":NaN,%s}' % MESSAGES).encode(), "invalid_json"),
    "infinity": (('{"model":"demo","temperature":-Infinity,%s}' % MESSAGES).encode(), "invalid_json"),
    "two-models": (('{"model":"demo","model":"other",%s}' % MESSAGES).encode(), "invalid_request"),
    "two-streams": (
        ('{"model":"demo","stream":true,"stream":false,%s}' % MESSAGES).encode(),
        "invalid_request",
    ),
    "hidden-second-model": (
        ('{"model":"demo","mod\\u0065l":"other",%s}' % MESSAGES).encode(),
        "invalid_request",
    ),
    "lone-surrogate": (b'{"model":"demo","messages":[{"role":"user","content":"\\ud800"}]}', "invalid_json"),
    "latin-1": (b'{"model":"demo","messages":[{"role":"user","content":"\xe9"}]}', "invalid_json"),
    "utf-16": (chat().decode().encode("utf-16"), "invalid_json"),
    "bom": (b"\xef\xbb\xbf" + chat(), "invalid_json"),
    "deep": (b'{"model":"demo","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
    "no-model": (("{%s}" % MESSAGES).encode(), "invalid_request"),
    "model-number": (('{"model":7,%s}' % MESSAGES).encode(), "invalid_request"),
    "stream-text": (('{"model":"demo","stream":"yes",%s}' % MESSAGES).encode(), "invalid_request"),
    "n-zero": (('{"model":"demo","n":0,%s}' % MESSAGES).encode(), "invalid_request"),
    "no-messages": (b'{"model":"demo"}', "invalid_request"),
}


@pytest.fixture(scope="module")
def running(sim_session):
    limits = {"body_bytes": "1MiB", "header_timeout": "1s", "body_timeout": "1s"}
    document = mesh(sim_session.url, slots=2, model={"aliases": ["org/model:tag"]}, server={"limits": limits})
    with gateway(document) as gate:
        yield gate
        assert gate.state()["totals"]["accepted"] == gate.state()["totals"]["completed"]


def check_harmless(running) -> None:
    """Nothing is held, and the next caller is served."""
    assert idle(running.state())
    assert adds_up(running.state())
    assert drive(ask(running.port, chat("tokens=1"))).status == 200


@pytest.mark.parametrize("case", BAD_BODIES)
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_G1_bad_bodies(running, case, framing):
    body, code = BAD_BODIES[case]

    async def send() -> Answer:
        if framing == "length":
            return await ask(running.port, body)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        call = await Call.open(running.port, head + b"transfer-encoding: chunked\r\n\r\n" + chunked)
        answer = await call.answer()
        call.leave()
        return answer

    answer = drive(send())
    assert answer.status == 400, answer
    assert answer.headers["x-mesh-code"] == answer.error["code"] == code
    assert answer.error["message"]
    assert answer.error["type"] == "invalid_request_error"
    check_harmless(running)


@pytest.mark.parametrize(
    ("request_line", "headers", "status", "code"),
    [
        ("GET /v1/chat/completions", [], 405, "method_not_allowed"),
        ("DELETE /v1/models", [], 405, "method_not_allowed"),
        ("POST /v1/nothing", [], 404, "unknown_path"),
        ("GET /", [], 404, "unknown_path"),
        ("GET /v1/models/nobody", [], 404, "model_not_found"),
        ("POST /v1/chat/completions", ["content-type: text/xml"], 415, "unsupported_media_type"),
        ("POST /v1/chat/completions", ["content-encoding: gzip"], 415, "unsupported_media_type"),
        ("POST /v1/chat/completions", ["x-mesh-timeout: nonsense"], 400, "invalid_request"),
        ("POST /v1/chat/completions", ["x-mesh-class: nonsense"], 400, "invalid_request"),
    ],
)
def test_G1_decided_on_the_head(running, request_line, headers, status, code):
    async def send() -> Answer:
        head = "\r\n".join([f"{request_line} HTTP/1.1", "host: x", "content-length: 0", *headers])
        call = await Call.open(running.port, (head + "\r\n\r\n").encode())
        answer = await call.answer()
        call.leave()
        return answer

    answer = drive(send())
    assert (answer.status, answer.headers["x-mesh-code"]) == (status, code)
    assert answer.error["code"] == code
    if status == 405:
        assert answer.headers["allow"]
    check_harmless(running)


def test_G1_unknown_model(running):
    answer = drive(ask(running.port, chat(model="nobody")))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    check_harmless(running)


SMUGGLING = {
    "cl-and-te": "content-length: 4\r\ntransfer-encoding: chunked",
    "te-and-cl": "transfer-encoding: chunked\r\ncontent-length: 4",
    "two-lengths": "content-length: 4\r\ncontent-length: 5",
    "two-equal-lengths": "content-length: 4\r\ncontent-length: 4",
    "signed-length": "content-length: +4",
    "list-length": "content-length: 4, 4",
    "xchunked": "transfer-encoding: xchunked",
    "gzip-chunked": "transfer-encoding: gzip, chunked",
    "two-hosts": "host: y\r\ncontent-length: 0",
    "folded": "x-folded: a\r\n b\r\ncontent-length: 0",
    "space-before-colon": "content-length : 0",
    "nul": "x-nul: a\0b\r\ncontent-length: 0",
}


@pytest.mark.parametrize("case", SMUGGLING)
def test_G3_no_smuggling(running, case):
    """Refused, closed, and the bytes behind it are never taken for a request."""
    hidden = b"GET /v1/models HTTP/1.1\r\nhost: smuggled\r\n\r\n"

    async def send() -> bytes:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        call = await Call.open(
            running.port, (head + SMUGGLING[case] + "\r\n\r\n").encode() + b"0\r\n\r\n" + hidden
        )
        everything = await asyncio.wait_for(call.reader.read(-1), 20)
        call.leave()
        return everything

    everything = drive(send())
    assert everything.startswith(b"HTTP/1.1 400 "), everything
    assert everything.count(b"HTTP/1.1 ") == 1, everything
    assert b"connection: close" in everything.lower()
    check_harmless(running)


def test_G3_credentials_do_not_pass_and_framing_is_ours(running, sim):
    async def run():
        call = await Call.open(
            running.port,
            post(
                chat("tokens=1"),
                "authorization: Bearer secret",
                "cookie: a=b",
                "connection: x-drop",
                "x-drop: 1",
            ),
        )
        answer = await call.answer()
        call.leave()
        return answer

    answer = drive(run())
    assert answer.status == 200
    assert "set-cookie" not in answer.headers


def test_G2_bodies_over_the_limit(running):
    async def by_length() -> Answer:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n"
        call = await Call.open(running.port, head)
        answer = await call.answer()
        assert await call.closed()
        call.leave()
        return answer

    async def by_chunks() -> Answer:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        call = await Call.open(running.port, head)
        piece = b"%x\r\n%b\r\n" % (65536, b"x" * 65536)
        for _ in range(20):
            call.send(piece)
        answer = await call.answer()
        call.leave()
        return answer

    for way in (by_length, by_chunks):
        answer = drive(way())
        assert (answer.status, answer.headers["x-mesh-code"]) == (413, "body_too_large")
    check_harmless(running)


def test_G2_slow_heads_and_bodies_are_cut_off(running):
    async def run():
        head = await Call.open(running.port, b"POST /v1/chat/comp")
        body = await Call.open(running.port, post(chat())[:-5])
        answers = [await head.answer(), await body.answer()]
        assert await head.closed()
        assert await body.closed()
        head.leave()
        body.leave()
        return answers

    for answer in drive(run()):
        assert (answer.status, answer.headers["x-mesh-code"]) == (408, "request_timeout")
        assert answer.headers["x-should-retry"] == "false"
    check_harmless(running)


def test_A7_the_deadline_runs_while_the_body_is_read(running):
    """A caller that shortens its deadline and then sends slowly is cut off by it."""

    async def run():
        call = await Call.open(running.port, post(chat(), "x-mesh-timeout: 0.2")[:-5])
        began = time.monotonic()
        answer = await call.answer()
        call.leave()
        return answer, time.monotonic() - began

    answer, took_s = drive(run())
    assert (answer.status, answer.headers["x-mesh-code"]) == (408, "request_timeout")
    assert took_s < 0.9, "the server's own body_timeout is 1 s"


def test_G2_a_megabyte_of_header(running):
    async def run():
        call = await Call.open(running.port)
        call.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-large: " + b"a" * 1_000_000)
        answer = await call.answer()
        call.leave()
        return answer

    answer = drive(run())
    assert (answer.status, answer.headers["x-mesh-code"]) == (431, "headers_too_large")
    check_harmless(running)


def test_G2_half_open_connections(running):
    """200 connections that send half a head: others are served meanwhile, and they are closed."""

    async def run():
        calls = [await Call.open(running.port, b"POST /v1") for _ in range(200)]
        assert (await ask(running.port, chat("tokens=1"))).status == 200
        closed = await asyncio.gather(*(call.closed() for call in calls))
        for call in calls:
            call.leave()
        return closed

    assert all(drive(run()))
    check_harmless(running)


def test_models_and_health(running):
    async def get(path: str) -> Answer:
        call = await Call.open(running.port, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        answer = await call.answer()
        call.leave()
        return answer

    listed = drive(get("/v1/models")).json
    assert [model["id"] for model in listed["data"]] == ["demo", "org/model:tag"]
    assert drive(get("/v1/models/org/model:tag")).json["object"] == "model"
    for path in ("/health", "/health/live", "/health/ready", "/healthz", "/readyz", "/livez"):
        assert drive(get(path)).status == 200
    assert json.loads(drive(get("/health/ready")).body)["status"] == "ready"


def test_one_log_line_per_request(sim):
    """Bad input leaves one line, and neither prompt, answer nor key is ever in the log (F3)."""
    with gateway(mesh(sim.url)) as gate:
        drive(ask(gate.port, b'{"secret-prompt', "authorization: Bearer secret-key"))
        answer = drive(ask(gate.port, chat("tokens=5 first=5ms"), "x-request-id: abc"))
        drive(until(gate.requests_logged))
        lines = [line for line in gate.lines if line["event"] in ("request", "refused")]
        assert [line["event"] for line in lines] == ["refused", "request"]
        assert lines[0]["code"] == "invalid_json"
        last = lines[1]
        assert last["id"] == "abc"
        assert (last["model"], last["backend"], last["attempts"]) == ("demo", "sim", 1)
        assert (last["phase"], last["cause"], last["status"], last["stream"]) == ("complete", "ok", 200, True)
        assert last["bytes_out"] >= len(answer.body)
        assert last["first_content_ms"] > 0
        text = "\n".join(gate.text)
    assert "secret" not in text
    assert "Hello" not in text


def test_keep_alive_on_both_sides(sim):
    """100 requests of one caller use one connection to the gateway and one to the backend."""

    async def run(gate):
        call = await Call.open(gate.port)
        for number in range(100):
            call.send(post(chat("tokens=2", stream=number % 2 == 0)))
            answer = await call.answer()
            assert answer.status == 200
        call.leave()

    with gateway(mesh(sim.url, slots=2, backend={"health": {"interval": "600s"}})) as gate:
        before = sim.state()["connections"]
        drive(run(gate))
        # The second reading of the simulator's state is a connection of its own; so may be the health probe's,
        # which the requests then use as well.
        assert sim.state()["connections"] - before - 1 <= 2
