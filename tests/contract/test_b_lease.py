"""Contract B: who owns accepted work, seen at the backend."""

from __future__ import annotations

import time

import pytest

from tests.contract.support import Call, adds_up, ask, chat, drive, gateway, idle, mesh, post, until

TOLD_MS = 100  # B4: the upstream hears of a departure within this time
BACK_S = 2.0  # and the slot is free again within this


def only_record(sim):
    records = list(sim.state()["requests"].values())
    assert len(records) == 1
    return records[0]


@pytest.mark.parametrize(
    ("script", "stream", "content"),
    [
        ("tokens=500 interval=20ms", True, True),
        ("hang=headers", True, False),
        ("hang=first", True, False),
        ("tokens=500 interval=20ms", False, False),
        ("hang=headers", False, False),
    ],
    ids=["stream", "silent-before-headers", "silent-after-headers", "plain", "plain-silent"],
)
@pytest.mark.parametrize("way", ["leave", "reset", "half_close"])
def test_B4_departure(sim, script, stream, content, way):
    """Client gone: the upstream is told within 100 ms, generation stops, the slot returns within 2 s."""

    async def run(running):
        call = await Call.open(running.port, post(chat(script, stream=stream)))
        if content:
            await call.content()
        else:
            await until(lambda: sim.state()["running"] == 1)
        left_at = time.time()
        getattr(call, way)()
        await until(lambda: only_record(sim)["state"] == "aborted", within_s=BACK_S)
        assert await until(lambda: idle(running.state()), show=running.state) < BACK_S
        if way == "half_close":
            assert await call.closed()
        call.leave()
        return left_at

    with gateway(mesh(sim.url, slots=1, engine="openai")) as running:
        drive(run(running))
        state = running.state()
        assert state["totals"]["cancelled"] == 1
        assert adds_up(state)
        stage = "after_content" if content else "before_headers"
        assert running.metric("cancellations_total", stage=stage) == 1
        assert running.metric("requests_total", phase=stage, cause="client_gone") == 1
        assert running.metric("drains_total", evidence="grace") == 1
    made = only_record(sim)["tokens"]
    assert made < 400


def test_B4_told_within_100_ms(sim):
    """Measured at the backend: from the caller's close to the abort of its generation."""

    async def run(running):
        delays = []
        for _ in range(20):
            sim.reset()
            call = await Call.open(running.port, post(chat("tokens=500 interval=10ms")))
            await call.content()
            left = time.monotonic()
            call.leave()
            await until(lambda: only_record(sim)["state"] == "aborted")
            delays.append(time.monotonic() - left)
        return sorted(delays)

    with gateway(mesh(sim.url, slots=4)) as running:
        delays = drive(run(running))
    assert delays[len(delays) // 2] * 1000 < TOLD_MS, delays


def test_B4_a_client_that_leaves_after_the_marker_has_completed(sim):
    async def run(running):
        call = await Call.open(running.port, post(chat("tokens=3")))
        await call.content(b"data: [DONE]\n\n")
        call.reset()
        await until(lambda: running.state()["totals"]["completed"] == 1, show=running.state)

    with gateway(mesh(sim.url)) as running:
        drive(run(running))
        assert running.metric("requests_total", phase="complete", cause="ok") == 1


def test_B4_pipelined_bytes_do_not_hide_departure(sim):
    async def run(running):
        call = await Call.open(running.port, post(chat("hang=headers")) + post(chat("tokens=1")))
        await until(lambda: sim.state()["running"] == 1)
        call.leave()
        await until(lambda: sim.state()["running"] == 0, within_s=BACK_S)
        await until(lambda: idle(running.state()))

    with gateway(mesh(sim.url)) as running:
        drive(run(running))
        assert running.state()["totals"]["accepted"] == 1


def test_B5_a_slot_drains_until_the_backend_has_stopped(sim):
    """A backend that keeps working after the close keeps its slot: nobody is sent into it."""

    async def run(running):
        call = await Call.open(running.port, post(chat("tokens=500 interval=20ms ignore_disconnect")))
        await call.content()
        call.leave()
        await until(lambda: running.state()["backends"][0]["slots"]["draining"] == 1)
        waiting = await Call.open(running.port, post(chat("tokens=1")))
        await until(lambda: running.state()["totals"]["waiting"] == 1)
        slots = running.state()["backends"][0]["slots"]
        assert (slots["running"], slots["draining"], slots["free"]) == (0, 1, 0)
        answer = await waiting.answer()
        assert answer.headers["x-mesh-code"] == "queue_timeout"

    document = mesh(
        sim.url, slots=1, model={"queue": {"timeout": "1s"}}, backend={"drain": {"policy": "worst_case"}}
    )
    with gateway(document) as running:
        drive(run(running))
    assert sim.state()["peak_running"] == 1


def test_B5_trust_frees_at_once(sim):
    async def run(running):
        call = await Call.open(running.port, post(chat("tokens=500 interval=20ms")))
        await call.content()
        call.leave()
        await until(lambda: idle(running.state()))

    with gateway(mesh(sim.url, slots=1, backend={"drain": {"policy": "trust"}})) as running:
        drive(run(running))
        assert running.metric("drains_total", evidence="trust") == 1


def test_B6_full_goes_back_to_the_head_of_the_line(sim):
    """The backend has fewer slots than we believe: “full” is neither a failure nor an attempt."""

    async def run(running):
        # The simulator has 64 slots: the script `full` plays the full engine, once per request id.
        answer = await ask(running.port, chat("full"))
        assert (answer.status, answer.headers["x-mesh-code"]) == (503, "queue_timeout")

    with gateway(mesh(sim.url, slots=4, model={"queue": {"timeout": "2s"}})) as running:
        drive(run(running))
        assert running.metric("retries_total", reason="full") >= 2
        assert running.metric("requests_total", cause="queue_timeout") == 1
        assert idle(running.state())


def test_B7_sigterm_lets_streams_finish_and_refuses_the_new(sim):
    async def run(running):
        stream = await Call.open(running.port, post(chat("tokens=40 interval=50ms")))
        answer = await stream.content()
        running.process.terminate()
        await until(lambda: not running.state()["ready"])
        late = await ask(running.port, chat())
        assert (late.status, late.headers["x-mesh-code"]) == (503, "shutting_down")
        assert late.headers["connection"] == "close"
        answer = await stream.body(answer)
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert not answer.cut
        stream.leave()

    with gateway(mesh(sim.url, server={"lame_duck": "1s"})) as running:
        drive(run(running))
        assert running.process.wait(20) == 0
        assert any(line.get("event") == "stopped" for line in running.lines)


def test_B7_waiters_that_are_refused_are_told_how_long_they_have_waited(sim):
    async def run(running):
        stream = await Call.open(running.port, post(chat("tokens=40 interval=50ms")))
        await stream.content()
        waiter = await Call.open(running.port, post(chat()))
        await until(lambda: running.state()["models"][0]["waiting"]["total"] == 1)
        began = time.monotonic()
        await until(lambda: time.monotonic() - began >= 0.2)
        running.process.terminate()
        refused = await waiter.answer()
        assert (refused.status, refused.headers["x-mesh-code"]) == (503, "shutting_down")
        assert int(refused.headers["x-mesh-queue-ms"]) >= 200
        stream.leave()

    with gateway(mesh(sim.url, slots=1, server={"shutdown_waiters": "refuse"})) as running:
        drive(run(running))
        assert running.process.wait(20) == 0


def test_B7_what_outlasts_the_grace_gets_the_error_event(sim):
    async def run(running):
        stream = await Call.open(running.port, post(chat("tokens=4000 interval=50ms")))
        answer = await stream.content()
        running.process.terminate()
        answer = await stream.body(answer)
        assert answer.error["code"] == "shutting_down"
        assert b"[DONE]" not in answer.body
        assert not answer.cut
        stream.leave()

    with gateway(mesh(sim.url, server={"shutdown_grace": "500ms"})) as running:
        drive(run(running))
        assert running.process.wait(20) == 0
        assert running.requests_logged()[-1]["cause"] == "shutdown"
    assert sim.state()["running"] == 0


def test_B7_a_second_signal_ends_at_once(sim):
    async def run(running):
        stream = await Call.open(running.port, post(chat("tokens=4000 interval=50ms")))
        answer = await stream.content()
        running.process.terminate()
        await until(lambda: not running.state()["ready"])
        running.process.terminate()
        assert (await stream.body(answer)).error["code"] == "shutting_down"
        stream.leave()

    with gateway(mesh(sim.url)) as running:
        drive(run(running))
        assert running.process.wait(20) == 1


def test_B5_worst_case_does_not_believe_a_short_deadline(sim):
    """A caller that shortens its own deadline does not shorten what the backend may still be doing (A1)."""
    document = mesh(
        sim.url,
        slots=1,
        model={"queue": {"timeout": "1s"}},
        backend={"drain": {"policy": "worst_case"}},
        timeouts={"total": "6s"},
    )

    async def run(running):
        for _ in range(3):
            answer = await ask(
                running.port, chat("tokens=500 interval=20ms ignore_disconnect"), "x-mesh-timeout: 0.3"
            )
            assert answer.status in (200, 503, 504)
            slots = running.state()["backends"][0]["slots"]
            assert (slots["running"], slots["draining"]) == (0, 1)

    with gateway(document) as running:
        drive(run(running))
    assert sim.state()["peak_running"] == 1


def test_B5_confirm_waits_for_the_engines_own_word(sim):
    """The backend lingers after the close: its slot stays counted exactly until it says that it has stopped."""

    async def run(running):
        call = await Call.open(running.port, post(chat("tokens=500 interval=20ms linger=1500ms")))
        await call.content()
        call.leave()
        await until(lambda: only_record(sim)["lingering"])
        began = time.monotonic()
        waiting = await Call.open(running.port, post(chat("tokens=1")))
        answer = await waiting.answer()
        assert answer.status == 200
        assert time.monotonic() - began > 1.0
        assert sim.state()["peak_running"] == 1, "nobody was sent into the lingering slot"

    with gateway(mesh(sim.url, slots=1)) as running:
        drive(run(running))
        assert running.metric("drains_total", evidence="reported") == 1
        assert running.metric("drains_total") == 1


def test_B6_the_backends_own_retry_after_is_kept_and_passed_on(sim):
    """A full backend that asks for 5 s is not tried before, and no caller is told to come back earlier (O14, U11)."""

    async def run(running):
        answer = await ask(running.port, chat("full retry_after=5"))
        assert (answer.status, answer.headers["x-mesh-code"]) == (503, "queue_timeout")
        assert int(answer.headers["retry-after"]) >= 4, "one of the five seconds has been waited"
        assert sim.state()["refused"] == 1, "it was not tried again"

    with gateway(mesh(sim.url, slots=4, model={"queue": {"timeout": "1s"}})) as running:
        drive(run(running))
