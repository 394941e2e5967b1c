"""The engine without sockets: a responder that only notes what it is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from inferencemesh.sim.cutter import Cutter
from inferencemesh.sim.engine import Engine
from inferencemesh.sim.request import RequestError, parse_chat
from inferencemesh.sim.script import Script
from tests.sim.fakeloop import Loop
from tests.sim.rawclient import chat_body, contents


class Note:
    """Stands in for a Responder."""

    def __init__(self) -> None:
        self.started = self.finished = self.departed = self.paused = False
        self.status = 0
        self.body = b""
        self.largest_write = 0
        self.depart: Callable[[], None] = lambda: None
        self.resume: Callable[[], None] = lambda: None

    def listen(
        self, *, on_departure: Callable[[], None], on_pause: Callable[[], None], on_resume: Callable[[], None]
    ) -> None:
        self.depart = on_departure
        self.resume = on_resume

    def send(self, status: int, headers: object, body: bytes) -> None:
        self.status, self.body, self.started, self.finished = status, body, True, True

    def start(self, status: int, headers: object, *, length: int | None, first: bytes = b"") -> None:
        self.status, self.started = status, True
        self.write(first)

    def write(self, data: bytes) -> None:
        self.body += data
        self.largest_write = max(self.largest_write, len(data))

    def owns(self, responder: object) -> bool:
        return not (self.finished or self.departed)

    def finish(self, last: bytes = b"") -> None:
        self.write(last)
        self.finished = True


def engine(slots: int, queue: int, loop: Any = None) -> Engine:
    loop = loop or asyncio.get_running_loop()
    return Engine(loop, slots=slots, queue=queue, seed=0, models=["demo"], script=Script())


def submit(target: Engine, script: str, **fields: object) -> Note:
    note = Note()
    record = target.history.open("id", target.loop.time())
    call = parse_chat(chat_body(script, **fields), target.models, target.script)
    target.submit(call, note, Cutter(note, note, target.loop), record)  # type: ignore[arg-type]
    return note


def test_a_long_line_of_instant_answers_is_no_deep_recursion() -> None:
    async def main() -> None:
        target = engine(1, 3000)
        blocker = submit(target, "hang=first")
        others = [submit(target, "tokens=1") for _ in range(3000)]
        assert submit(target, "tokens=1").status == 429
        assert not any(note.started for note in others)
        blocker.depart()
        assert all(note.finished for note in others)
        assert target.state(requests=False)["running"] == 0
        assert target.state(requests=False)["peak_running"] == 1

    asyncio.run(main())


def test_an_instant_answer_is_written_in_one_go() -> None:
    async def main() -> None:
        note = submit(engine(1, 0), "tokens=16")
        assert note.finished
        assert note.largest_write == len(note.body)

    asyncio.run(main())


def test_back_pressure_holds_the_writing_and_not_the_generation() -> None:
    async def main() -> None:
        target = engine(1, 0)
        free = submit(target, "tokens=900 bytes=1000")
        note = Note()
        note.paused = True
        record = target.history.open("slow", target.loop.time())
        call = parse_chat(chat_body("tokens=900 bytes=1000"), target.models, target.script)
        target.submit(call, note, Cutter(note, note, target.loop), record)  # type: ignore[arg-type]
        assert (record.state, record.tokens) == ("completed", 900)
        assert note.body == b""
        note.paused = False
        note.resume()
        assert note.finished
        assert note.body == free.body
        assert note.largest_write < 70_000

    asyncio.run(main())


def test_a_request_wider_than_the_engine_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(RequestError, match="2 slots"):
            submit(engine(2, 4), "tokens=1", n=3)

    asyncio.run(main())


def test_a_second_departure_changes_nothing() -> None:
    async def main() -> None:
        target = engine(1, 1)
        note = submit(target, "hang=first")
        note.depart()
        note.depart()
        state = target.state(requests=False)
        assert (state["aborted"], state["running"]) == (1, 0)

    asyncio.run(main())


def test_tokens_come_on_time_whatever_the_delays_before() -> None:
    loop = Loop()
    target = engine(1, 0, loop)
    note = submit(target, "tokens=1000 first=50ms interval=10ms")
    start = loop.time()
    late = random.Random(3)
    while not note.finished:
        # The loop is busy for up to 60 ms: then several tokens are due, and the next is not moved by it.
        loop.instant += late.uniform(0.001, 0.06)
        loop.run_to(loop.instant)
        passed = loop.time() - start - 0.05
        due = 0 if passed < 0 else min(1000, int(passed / 0.01 + 1e-6) + 1)
        assert abs(len(contents(note.body)) - due) <= 1
    assert 10.0 < loop.time() - start < 10.11


def test_a_thousand_streams_need_one_timer_of_the_loop() -> None:
    loop = Loop()
    target = engine(1000, 0, loop)
    notes = [submit(target, "tokens=20 interval=10ms", user=str(number)) for number in range(1000)]
    loop.run_to(loop.time() + 0.1)
    assert len(loop.armed()) == 1
    loop.run_to(loop.time() + 10)
    assert all(note.finished for note in notes)
    assert loop.armed() == []
