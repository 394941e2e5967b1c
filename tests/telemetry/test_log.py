from __future__ import annotations

import gc
import io
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from inferencemesh.core.events import BackendChanged, Drained, Retried
from inferencemesh.core.outcome import Phase
from inferencemesh.telemetry.log import Log, stream_sink
from inferencemesh.telemetry.writer import LineWriter
from tests.telemetry.facts import ended, refused

# Contract F3, with what the interface adds.
F3 = {
    "id", "tenant", "model", "backend", "attempts", "wait_ms", "first_content_ms", "duration_ms", "bytes_in",
    "bytes_out", "tokens_in", "tokens_out", "events", "phase", "cause", "upstream_phase", "status", "stream",
    "notes",
}  # fmt: skip


class Sink:
    """Collects bytes; `block` makes it hang until `go` is called."""

    def __init__(self, *, block: bool = False) -> None:
        self.data = b""
        self.entered = threading.Event()
        self._free = threading.Event()
        if not block:
            self._free.set()

    def __call__(self, data: bytes) -> None:
        self.entered.set()
        assert self._free.wait(10)
        self.data += data

    def go(self) -> None:
        self._free.set()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.splitlines()]


def written(log: Log, lines: int) -> bool:
    return log.written_total == lines


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.002)


def test_a_request_is_one_json_line_with_every_field():
    sink = Sink()
    log = Log(sink=sink)
    log(ended(notes=("marker_missing",)))
    log(refused())
    assert log.close()
    request, refusal = sink.lines
    assert set(request) >= F3
    assert request["event"] == "request"
    assert request["level"] == "info"
    assert request["at"] == "2026-09-21T14:13:20.250Z"
    assert (request["wait_ms"], request["first_content_ms"], request["duration_ms"]) == (12.0, 200.0, 2500.0)
    assert (request["phase"], request["cause"], request["notes"]) == ("complete", "ok", ["marker_missing"])
    assert refusal["event"] == "refused"
    assert (refusal["code"], refusal["status"], refusal["id"]) == ("queue_full", 503, "req-2")
    assert log.written_total == 2


def test_the_process_speaks_through_the_same_writer():
    sink = Sink()
    log = Log(sink=sink)
    log.logger.info("ready", public="http://127.0.0.1:8080")
    log(ended())
    log.logger.bind(worker=1).error("odd", at_what="x")
    log.close()
    assert [line["event"] for line in sink.lines] == ["ready", "request", "odd"]
    assert list(sink.lines[0]) == ["at", "level", "event", "public"]
    assert sink.lines[0]["public"] == "http://127.0.0.1:8080"
    assert sink.lines[2]["level"] == "error"
    assert sink.lines[2]["worker"] == 1


def test_backend_changes_and_unconfirmed_drains_are_told():
    sink = Sink()
    log = Log(sink=sink)
    log(BackendChanged("gpu-a", up=False, breaker="open", reason="connect refused"))
    log(BackendChanged("gpu-a", up=True, breaker="closed", reason="probe"))
    log(Drained("gpu-a", "peer_closed", 0.1))
    log(Drained("gpu-a", "limit", 61.0))
    log(Retried("gpu-a", "full"))
    log.close()
    assert [(line["event"], line["level"]) for line in sink.lines] == [
        ("backend", "warning"),
        ("backend", "info"),
        ("drain_unconfirmed", "warning"),
    ]


def test_level_warning_silences_requests_and_information():
    sink = Sink()
    log = Log(sink=sink, level="warning")
    log(ended())
    log.logger.info("ready")
    log.logger.warning("careful")
    log.close()
    assert [line["event"] for line in sink.lines] == ["careful"]


def test_secrets_and_contents_are_masked_in_messages():
    sink = Sink()
    log = Log(sink=sink)
    log.logger.info(
        "x", api_key="sk-1", Authorization="Bearer sk-1", prompt="tell me", token="t", tenant="acme"
    )
    log.close()
    assert b"sk-1" not in sink.data
    assert b"tell me" not in sink.data
    assert sink.lines[0]["tenant"] == "acme"


def test_a_made_up_model_name_is_bounded():
    sink = Sink()
    log = Log(sink=sink)
    log(refused(model="m" * 100_000))
    log.logger.info("long", text="x" * 100_000)
    log.close()
    assert len(sink.lines[0]["model"]) == 128
    assert len(sink.data) < 5_000


def test_exceptions_are_rendered_in_one_line():
    sink = Sink()
    log = Log(sink=sink)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        log.logger.exception("failed")
    log.close()
    (line,) = sink.lines
    assert "RuntimeError: broken" in line["exception"]


def test_people_get_lines_without_what_says_nothing_and_without_control_characters():
    sink = Sink()
    log = Log(sink=sink, format="human")
    log(ended(tokens_in=None))
    log(refused(model="evil\x1b[2Jname"))
    log.close()
    first, second = sink.data.decode().splitlines()
    assert "acme" in first
    assert "200 ok (complete)" in first
    assert len(first) < 120
    assert "tokens_in" not in first
    assert "notes" not in first
    assert "\x1b" not in second
    assert "evil" in second


def test_auto_is_json_unless_on_a_terminal(monkeypatch):
    stream = io.StringIO()
    log = Log(stream)
    log.logger.info("ready")
    log.close()
    assert log.format == "json"
    assert json.loads(stream.getvalue())["event"] == "ready"
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    on_terminal = Log(terminal)
    on_terminal(ended())
    on_terminal.close()
    assert on_terminal.format == "human"
    assert "200 ok (complete)" in terminal.getvalue()


def test_binary_streams_work_too(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file:
        write = stream_sink(file)
        write(b"one\n")
    with path.open("a") as file:
        stream_sink(file)(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_stream_that_nobody_else_holds_stays_open():
    kept = io.BytesIO()
    write = stream_sink(io.TextIOWrapper(kept))
    gc.collect()
    write(b"one\n")
    assert kept.getvalue() == b"one\n"


def test_nonsense_settings_are_refused():
    with pytest.raises(ValueError, match="format"):
        Log(sink=Sink(), format="xml")
    with pytest.raises(ValueError, match="level"):
        Log(sink=Sink(), level="loud")


def test_a_slow_sink_drops_and_counts_and_never_blocks():
    sink = Sink(block=True)
    log = Log(sink=sink, capacity=100)
    log(ended())
    assert sink.entered.wait(10)
    began = time.monotonic()
    for _ in range(1000):
        log(ended())
    assert time.monotonic() - began < 2
    assert log.dropped_total == 900
    sink.go()
    assert log.close(10)
    told = [line for line in sink.lines if line["event"] == "log_lines_dropped"]
    assert sum(line["count"] for line in told) == 900
    assert log.written_total == 101 + len(told)


def test_closing_on_a_stuck_sink_is_bounded_and_counts_what_was_left():
    sink = Sink(block=True)
    log = Log(sink=sink)
    log(ended())
    assert sink.entered.wait(10)
    log(ended())
    began = time.monotonic()
    assert log.close(0.05) is False
    assert time.monotonic() - began < 5
    assert log.dropped_total == 1
    log(ended())
    assert log.dropped_total == 2
    sink.go()


def test_a_broken_sink_costs_lines_and_nothing_else():
    def broken(_: bytes) -> None:
        raise BrokenPipeError

    log = Log(sink=broken)
    log(ended())
    log(ended(phase=Phase.BEFORE_HEADERS))
    assert log.close(10)
    assert log.written_total == 0
    assert log.dropped_total >= 2


def test_an_entry_that_cannot_be_rendered_does_not_cost_the_others():
    lines: list[bytes] = []

    def render(entry: int) -> bytes:
        return b"%d\n" % (10 // entry)

    writer: LineWriter[int] = LineWriter(lines.append, render)
    for entry in (1, 0, 2):
        assert writer.put(entry)
    assert writer.close(10)
    assert b"".join(lines) == b"10\n5\n"
    assert writer.dropped_total == 1


def test_lines_come_out_in_order_and_without_waiting_for_close():
    sink = Sink()
    log = Log(sink=sink)
    for burst in range(5):
        for i in range(100):
            log.logger.info("n", n=burst * 100 + i)
        until(partial(written, log, (burst + 1) * 100))
    assert [line["n"] for line in sink.lines] == list(range(500))
    assert log.close()


def test_library_messages_go_the_same_way():
    sink = Sink()
    log = Log(sink=sink)
    log.capture_stdlib()
    log.capture_stdlib()
    logger = logging.getLogger("somebody.else")
    logger.warning("look %s", "here")
    logger.info("not this")
    try:
        raise ValueError("deep")
    except ValueError:
        logger.exception("bad")
    log.close()
    logger.warning("after the end")
    first, second = sink.lines
    assert (first["event"], first["logger"], first["level"]) == ("look here", "somebody.else", "warning")
    assert "ValueError: deep" in second["exception"]
    assert sys.exc_info() == (None, None, None)
