"""Contract C: what the caller may believe of a stream."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time

import pytest

from tests.contract.support import Call, ask, chat, drive, gateway, idle, mesh, post, until

RETRY = {"attempts": 1}

# script → (status, code, phase, cause) of a stream, then of a plain request; None where it does not apply.
FAULTS = [
    ("status=500", (502, "upstream_error", "before_headers"), (502, "upstream_error", "before_headers")),
    ("status=503", (502, "upstream_error", "before_headers"), (502, "upstream_error", "before_headers")),
    ("status=401", (502, "upstream_auth", "before_headers"), (502, "upstream_auth", "before_headers")),
    ("status=404", (502, "upstream_auth", "before_headers"), (502, "upstream_auth", "before_headers")),
    ("cut=headers", (502, "upstream_reset", "before_headers"), (502, "upstream_reset", "before_headers")),
    ("cut=first", (502, "upstream_reset", "before_headers"), (502, "upstream_reset", "before_headers")),
    ("end", (502, "upstream_incomplete", "before_headers"), None),
    ("error=first", (502, "upstream_error", "before_headers"), None),
    ("hang=headers", (504, "first_content_timeout", "before_headers"), None),
    ("hang=first", (504, "first_content_timeout", "before_headers"), (504, "idle_timeout", "before_headers")),
    ("cut=after:5", (200, "upstream_reset", "after_content"), None),
    ("end=after:5 nofinish", (200, "upstream_incomplete", "after_content"), None),
    ("error=after:5", (200, "upstream_error", "after_content"), None),
    ("hang=after:5", (200, "idle_timeout", "after_content"), None),
    ("tokens=5 nodone nofinish", (200, "upstream_incomplete", "after_content"), None),
]


@pytest.mark.parametrize(("script", "stream", "plain"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_C1_C2_C3_C5_the_error_table(sim, gateway_for_faults, script, stream, plain):
    """Each fault has its documented status, code, phase and cause, streaming and plain, also in the metric."""
    running = gateway_for_faults
    for asked, expected in ((True, stream), (False, plain)):
        if expected is None:
            continue
        status, code, phase = expected
        before = running.metric("requests_total", phase=phase, cause=code)
        answer = drive(ask(running.port, chat(script, stream=asked)))
        assert answer.status == status, answer
        assert answer.error["code"] == code
        assert b"[DONE]" not in answer.body
        if status != 200:
            assert answer.headers["x-mesh-code"] == code
            assert answer.headers["x-mesh-phase"] == phase
            assert answer.headers["content-type"] == "application/json"
        else:
            assert not answer.cut
            assert answer.body.count(b'"error"') == 1, "the upstream's own error is replaced, not repeated"
        after = running.metric("requests_total", phase=phase, cause=code)
        assert after == before + 1
        drive(until(lambda: idle(running.state()), show=running.state))


@pytest.fixture(scope="module")
def gateway_for_faults(sim_session):
    document = mesh(
        sim_session.url,
        slots=4,
        retries=RETRY,
        timeouts={"first_content": "1s", "idle": "1s"},
        backend={"drain": {"policy": "trust"}, "breaker": {"min_requests": 1000000}},
    )
    with gateway(document) as running:
        yield running


def test_C2_event_then_cut(sim):
    with gateway(mesh(sim.url, stream={"on_failure": "event_then_cut"})) as running:
        answer = drive(ask(running.port, chat("end=after:3 nofinish")))
        assert answer.cut
        assert answer.error["code"] == "upstream_incomplete"


def test_C3_finish_without_done_is_complete(sim):
    with gateway(mesh(sim.url)) as running:
        answer = drive(ask(running.port, chat("tokens=3 nodone")))
        assert answer.status == 200
        assert not answer.cut
        assert b'"error"' not in answer.body
        assert b"[DONE]" not in answer.body, "a finish is never made up"
        drive(until(lambda: running.state()["totals"]["completed"] == 1))
        assert running.metric("requests_total", phase="complete", cause="ok") == 1
        drive(until(running.requests_logged))
        assert "marker_missing" in running.requests_logged()[-1]["notes"]


def test_C3_strict_marker_makes_it_a_failure(sim):
    with gateway(mesh(sim.url, stream={"strict_marker": True})) as running:
        answer = drive(ask(running.port, chat("tokens=3 nodone")))
        assert answer.error["code"] == "upstream_incomplete"


def test_C3_an_error_followed_by_done_is_a_failure(sim):
    with gateway(mesh(sim.url)) as running:
        answer = drive(ask(running.port, chat("error=after:3")))
        assert answer.error["code"] == "upstream_error"
        assert b"[DONE]" not in answer.body


def test_C4_failover_only_before_any_output(sim, second_sim):
    """Two backends: a failure before content goes to the other one, one after content does not."""
    document = mesh(sim.url, model={"backends": ["sim", "other"]}, retries={"attempts": 2, "budget": 1})
    document["backends"].append({"name": "other", "url": second_sim.url, "engine": "sim", "slots": 8})

    async def run(running):
        for _ in range(6):
            assert (await ask(running.port, chat("tokens=3"))).status == 200
        sim.script("")
        late = await ask(running.port, chat("cut=after:3"))
        assert late.error["code"] == "upstream_reset"

    sim.script("status=503")
    try:
        with gateway(document) as running:
            drive(run(running))
            assert running.metric("retries_total", backend="sim", reason="503") >= 1
            backends = {line["backend"] for line in running.requests_logged() if line["cause"] == "ok"}
            assert backends <= {"other"}
    finally:
        sim.script("")


def test_C4_a_backend_that_cannot_be_reached_is_left_alone_for_a_while(sim):
    """It costs one request a try, and not every second one, long before its breaker or its probe notice."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        calm = {"health": {"interval": "1h"}, "breaker": {"min_requests": 1000}}
        document = mesh(sim.url, model={"backends": ["sim", "other"]}, backend=calm)
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        document["backends"].append({"name": "other", "url": url, "engine": "sim", "slots": 8, **calm})

        async def run(running):
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            for _ in range(12):
                assert (await ask(running.port, chat("tokens=1"))).status == 200
            return loop.time() - began_at

        with gateway(document) as running:
            took_s = drive(run(running))
            tries = running.metric("retries_total", backend="other", reason="connect")
        assert tries <= 1 + took_s / 5.0


def test_C6_every_event_passes_at_once(sim):
    """No event waits for the next: each arrives long before the one after it is made."""

    async def run(running):
        call = await Call.open(running.port, post(chat("tokens=8 interval=150ms")))
        answer = await call.head()
        times = []
        while not answer.body.endswith(b"data: [DONE]\n\n"):
            piece = await call.chunk()
            assert piece
            answer.body += piece
            times.append(time.monotonic())
        call.leave()
        return times

    with gateway(mesh(sim.url)) as running:
        times = drive(run(running))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    # Events came one by one, at the backend's pace: not joined by a relay that waits for more.
    assert len(times) >= 8
    assert sorted(gaps)[len(gaps) // 2] > 0.1


@pytest.mark.parametrize(
    "script",
    [
        "tokens=20",
        "tokens=20 crlf",
        "tokens=10 split",
        "tokens=10 split crlf",
        "tokens=4 bytes=1000000",
        "tokens=20 comments",
        "tokens=5 bytes=100000 crlf",
    ],
)
def test_C6_byte_for_byte(sim, script):
    """What the gateway passes is what the backend wrote: LF and CRLF, splits inside UTF-8, 1 MB events."""

    async def run(running):
        body = chat(script)
        direct = await ask(sim.port, body)
        through = await ask(running.port, body)
        return direct, through

    with gateway(mesh(sim.url)) as running:
        direct, through = drive(run(running))
    assert direct.status == through.status == 200
    assert through.body == direct.body
    assert not through.cut
    assert through.body.rstrip().endswith(b"[DONE]")


def test_C1_prefetch_max_starts_the_response_and_keeps_it_alive(sim):
    """A long silence after the upstream's head: the head goes out, and comments follow."""

    async def run(running):
        call = await Call.open(running.port, post(chat("hang=first")))
        answer = await call.head()
        assert answer.status == 200
        piece = await call.chunk()
        assert piece is not None
        assert piece.startswith(b":")
        assert not piece.endswith(b"\n\n"), "a comment of its own would be an empty event for some clients"
        answer = await call.body(answer)
        assert answer.error["code"] == "first_content_timeout"

    document = mesh(
        sim.url, stream={"prefetch_max": "300ms", "keepalive": "200ms"}, timeouts={"first_content": "3s"}
    )
    with gateway(document) as running:
        drive(run(running))
        assert running.metric("requests_total", phase="before_content", cause="first_content_timeout") == 1


def test_C7_a_reader_that_takes_nothing_is_cut_off(sim):
    async def run(running):
        call = await Call.open(running.port, post(chat("tokens=2000 bytes=65536")), limit=1024)
        call.pause()
        await until(lambda: running.state()["totals"]["failed"] == 1, show=running.state)
        call.reset()

    with gateway(mesh(sim.url, timeouts={"send": "1s"})) as running:
        drive(run(running))
        assert running.metric("requests_total", cause="send_timeout") == 1
        assert idle(running.state()) or drive(until(lambda: idle(running.state())))


def test_C7_back_pressure_stops_the_upstream_read(sim):
    """A reader that stops is not buffered for: the backend is slowed down, the gateway's memory is bounded."""

    async def run(running):
        call = await Call.open(running.port, post(chat("tokens=120 bytes=262144")), limit=1024)
        call.pause()
        await until(lambda: running.metric("buffered_bytes", kind="responses") > 0)
        worst = 0.0
        for _ in range(20):
            worst = max(worst, await asyncio.to_thread(running.metric, "buffered_bytes", kind="responses"))
        assert worst < 2 * 1024 * 1024, worst
        call.resume()
        answer = await call.answer()
        assert answer.body.endswith(b"data: [DONE]\n\n")
        call.leave()

    with gateway(mesh(sim.url)) as running:
        drive(run(running))


def test_plain_answers_pass_unchanged(sim):
    async def run(running):
        body = chat("tokens=30", stream=False)
        direct = await ask(sim.port, body)
        through = await ask(running.port, body, "x-request-id: my-own-id")
        assert through.body == direct.body
        assert through.headers["x-request-id"] == through.headers["request-id"] == "my-own-id"
        assert through.headers["content-type"] == "application/json"
        refused = await ask(running.port, chat("status=422", stream=False))
        assert refused.status == 422, "the caller's own mistake passes with its body"

    with gateway(mesh(sim.url)) as running:
        drive(run(running))
