"""Callers whose every step is drawn from a seed, and what each may believe of what it got."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

from inferencemesh.core.events import RequestEnded
from inferencemesh.sim.generate import Answer
from inferencemesh.sim.request import RequestError, parse_chat
from inferencemesh.sim.script import Script
from tests.virtual.world import World

FAULTS = (
    "status=500", "status=503", "status=502", "status=404", "status=400", "full", "full retry_after=1",
    "hang=headers", "hang=first", "hang=after:2", "hang=finish", "cut=headers", "cut=first", "cut=after:1",
    "cut=finish", "drop=headers", "drop=first", "drop=after:3", "drop=finish", "end=first", "end=after:2",
    "end=finish", "error=first", "error=after:2", "error=first error_code=429", "error=finish", "error=after:1",
    "error=after:3", "error=after:2 error_code=503",
)  # fmt: skip
STAY, LEAVE, RESET, HALF_CLOSE, STALL, FLOOD = "stay", "leave", "reset", "half_close", "stall", "flood"
NONSENSE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello",
)


@dataclass
class Response:
    """One response as it was framed."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    complete: bool = False


class Reader:
    """Takes responses off a byte stream; a second opinion on framing, in pure Python."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self._data = bytearray()
        self._now: Response | None = None

    def feed(self, data: bytes) -> None:
        self._data += data
        while self._step():
            pass

    def closed(self, *, cleanly: bool) -> None:
        """The end of the connection, which may be the body's."""
        now = self._now
        if now is not None and cleanly and not {"content-length", "transfer-encoding"} & now.headers.keys():
            now.body += self._data
            now.complete = True

    def _step(self) -> bool:
        now = self._now
        if now is None:
            return self._head()
        if now.headers.get("transfer-encoding") == "chunked":
            return self._chunk(now)
        if "content-length" in now.headers or now.status in (204, 304):
            length = int(now.headers.get("content-length", "0"))
            if len(self._data) < length:
                return False
            now.body = self._cut(length)
            self._done(now)
            return True
        return False

    def _head(self) -> bool:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return False
        first, *lines = self._cut(end + 4).decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in filter(None, lines):
            name, _, value = line.partition(": ")
            assert name not in headers or name not in ("content-length", "transfer-encoding"), lines
            headers[name] = value
        assert not {"content-length", "transfer-encoding"} <= headers.keys(), lines
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1", first
        if int(status) >= 200:
            self._now = Response(int(status), headers)
            self.responses.append(self._now)
        return True

    def _chunk(self, now: Response) -> bool:
        line = self._data.find(b"\r\n")
        if line < 0:
            return False
        size = int(self._data[:line], 16)
        if len(self._data) < line + 2 + size + 2:
            return False
        self._cut(line + 2)
        piece = self._cut(size + 2)
        assert piece[-2:] == b"\r\n", piece
        now.body += piece[:-2]
        if not size:
            self._done(now)
        return True

    def _done(self, now: Response) -> None:
        now.complete = True
        self._now = None

    def _cut(self, n: int) -> bytes:
        piece = bytes(self._data[:n])
        del self._data[:n]
        return piece


@dataclass
class Asked:
    """One request of a caller's: what it sent, how it meant to behave, what it got."""

    id: str
    body: bytes
    stream: bool
    script: str
    ending: str = STAY
    response: Response | None = None
    whole: bool = False  # was sent to its last byte
    stayed: bool = True  # was there until the response or the connection ended
    http10: bool = False


class Line(asyncio.Protocol):
    """A caller's connection."""

    def __init__(self) -> None:
        self.reader = Reader()
        self.transport: Any = None
        self.lost = False
        self._wake: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        self._tell()

    def eof_received(self) -> bool | None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.reader.closed(cleanly=exc is None)
        self._tell()

    def _tell(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def until(self, responses: int, within_s: float) -> bool:
        """Until so many responses are complete or the connection is gone; False when the time is over."""
        loop = asyncio.get_running_loop()
        end_at = loop.time() + within_s
        while not (self.lost or sum(r.complete for r in self.reader.responses) >= responses):
            self._wake = loop.create_future()
            timer = loop.call_at(end_at, self._tell)
            await self._wake
            timer.cancel()
            if loop.time() >= end_at:
                return False
        return True


@dataclass
class Caller:
    """One connection's life."""

    world: World
    rng: random.Random
    name: str
    models: tuple[str, ...]
    lingers: bool = False  # whether the backends' drain settings cover one that lingers for 100 ms
    asked: list[Asked] = field(default_factory=list)

    async def run(self) -> None:
        rng, world = self.rng, self.world
        try:
            sock = await world.net.connect(world.gateway.port, surely=True)
        except ConnectionError:
            return
        line = Line()
        await sock.attach(line)
        if rng.random() < 0.05:
            line.transport.write(rng.choice(NONSENSE))
            await asyncio.sleep(rng.uniform(0, 3))
            line.transport.abort()
            return
        for number in range(rng.choice((1, 1, 1, 2, 4))):
            if line.lost or line.transport.is_closing():
                break
            await self._ask(line, number)
        line.transport.close()

    async def _ask(self, line: Line, number: int) -> None:
        rng = self.rng
        asked = self._draw(number)
        self.asked.append(asked)
        before = len(line.reader.responses)
        await self._send(line, asked)
        if asked.ending != STAY:
            await line.until(before + 1, rng.choice((0, 0.01, 0.1, 1.0)) * rng.random())
            responses = line.reader.responses[before:]
            asked.stayed = line.lost or bool(responses and responses[0].complete)
        if not asked.stayed:
            await self._go(line, asked)
        elif not await line.until(before + 1, 120.0):
            raise AssertionError(f"{asked} has had no end after two minutes")
        responses = line.reader.responses[before:]
        asked.response = responses[0] if responses else None

    async def _go(self, line: Line, asked: Asked) -> None:
        rng, transport = self.rng, line.transport
        if asked.ending == LEAVE:
            transport.close()
        elif asked.ending == RESET:
            transport.get_extra_info("socket").linger = rng.random() < 0.5
            transport.abort()
        elif asked.ending == HALF_CLOSE:
            transport.write_eof()
            await line.until(1_000_000, 60.0)
            assert line.lost, f"{asked}: a half-close is a departure"
        elif asked.ending == FLOOD:
            transport.write(b"x" * rng.choice((10, 70_000)))
            await asyncio.sleep(rng.uniform(0, 0.5))
            transport.abort()
        else:
            transport.pause_reading()
            await asyncio.sleep(rng.choice((0.2, 2.0, 30.0)) * rng.random())
            if rng.random() < 0.5:
                transport.resume_reading()
                await line.until(1_000_000, 20.0)
            transport.abort()

    async def _send(self, line: Line, asked: Asked) -> None:
        rng, transport = self.rng, line.transport
        headers = [
            f"POST /v1/chat/completions HTTP/1.{0 if asked.http10 else 1}",
            "host: x",
            f"x-request-id: {asked.id}",
        ]
        body = asked.body
        draw = rng.random()
        if draw < 0.2 and not asked.http10:
            headers.append("transfer-encoding: chunked")
            cut = rng.randint(1, len(body))
            parts = [part for part in (body[:cut], body[cut:]) if part]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        else:
            headers.append(f"content-length: {len(body)}")
        if rng.random() < 0.1:
            headers.append(f"x-mesh-timeout: {rng.choice(('50ms', '500ms', '2s', '3', '1h'))}")
        if rng.random() < 0.2:
            headers.append("connection: close")
        if rng.random() < 0.1:
            headers.append("expect: 100-continue")
        data = ("\r\n".join(headers) + "\r\n\r\n").encode() + body
        if rng.random() < 0.7:
            transport.write(data)
            asked.whole = True
            return
        for _ in range(rng.randint(1, 6)):  # in pieces, and maybe never to its end
            cut = rng.randint(1, max(1, len(data)))
            piece, data = data[:cut], data[cut:]
            if piece:
                transport.write(piece)
            await asyncio.sleep(rng.choice((0, 0.01, 1.0)) * rng.random())
            if line.lost:
                return
        if rng.random() < 0.7:
            transport.write(data)
            asked.whole = True

    def _draw(self, number: int) -> Asked:
        rng = self.rng
        words = [f"tokens={rng.choice((0, 1, 3, 8, 30))}"]
        words.append(f"first={rng.choice((0, 0, 5, 100, 900))}ms")
        words.append(f"interval={rng.choice((0, 0, 1, 20, 150))}ms")
        if rng.random() < 0.15:
            words.append(f"bytes={rng.choice((500, 20_000))}")
        flags = ("split", "crlf", "comments", "early_role", "jitter=50ms")
        words.extend(flag for flag in flags if rng.random() < 0.1)
        if self.lingers and rng.random() < 0.3:
            words.append("linger=100ms")
        draw = rng.random()
        if draw < 0.45:
            words.append(rng.choice(FAULTS))
            if rng.random() < 0.4 and "full" not in words:
                words.append("times=1")
        elif draw < 0.5:
            words.append("nodone")
        elif draw < 0.55:
            words.append("nofinish")
        stream = rng.random() < 0.7
        script = " ".join(words)
        document: dict[str, Any] = {
            "model": rng.choice(self.models),
            "stream": stream,
            "messages": [{"role": "user", "content": f"{self.name} {number} [[sim {script}]]"}],
        }
        if rng.random() < 0.2:
            document["n"] = rng.choice((1, 2, 2, 3, 9))
        if rng.random() < 0.2:
            document["max_tokens"] = 2
        if stream and rng.random() < 0.3:
            document["stream_options"] = {"include_usage": True}
        body = json.dumps(document).encode()
        if rng.random() < 0.03:
            body = rng.choice((b"{", b"[]", b'{"model":"demo"}', b"\xff\xfe{}"))
        ending = rng.choice((STAY,) * 6 + (LEAVE, LEAVE, RESET, HALF_CLOSE, STALL, FLOOD))
        return Asked(f"{self.name}-{number}", body, stream, script, ending, http10=rng.random() < 0.05)


def judge(world: World, asked: Asked, *, cut_on_failure: bool) -> str:
    """Hold what the caller got against what the gateway says of it. Returns the cause, or why there is none."""
    ended = world.history.ended.get(asked.id, [])
    refused = world.history.refused.get(asked.id, [])
    assert len(ended) + len(refused) <= 1, f"{asked}: ended {ended}, refused {refused}"
    got = asked.response
    if (
        got is not None
        and got.status == 200
        and asked.stream
        and got.headers.get("content-type", "").startswith("text/")
    ):
        _check_stream(world, asked, got, ended[0] if ended else None, cut_on_failure=cut_on_failure)
    if not ended:
        if asked.whole and asked.stayed and got is not None and got.complete:
            assert got.status >= 400, f"{asked}: {got}"
        return refused[0].code if refused else "unheard"
    end = ended[0]
    if not asked.stayed:
        return end.cause
    assert end.cause != "client_gone", f"{asked} stayed: {end}"
    assert end.cause != "send_timeout", f"{asked} read all the time: {end}"
    if end.cause == "ok":
        assert got is not None, f"{asked}: {end}"
        assert got.complete, f"{asked}: {end} {got}"
        if not asked.stream and got.status == 200:
            bodies = [answer.plain() for answer in _answers(world, asked)]
            ends_early = "end=" in asked.script
            assert any(got.body == body or (ends_early and body.startswith(got.body)) for body in bodies), got
    elif end.status is not None and end.status >= 400 and got is not None and got.complete:
        assert got.status == end.status, f"{asked}: {end} {got}"
        assert "error" in json.loads(got.body), got
    elif got is not None and got.complete and got.status == 200 and not asked.stream:
        raise AssertionError(f"{asked} has a whole answer: {end}")
    return end.cause


def _check_stream(
    world: World, asked: Asked, got: Response, end: RequestEnded | None, *, cut_on_failure: bool
) -> None:
    """One backend's own bytes, to the border of an event (C4, C6); then the marker, or one error event (C2, C3)."""
    body = got.body.replace(b": keep-alive\r\n\r\n", b"").replace(b": keep-alive\n\n", b"")
    body = body.replace(b": keep-alive\n", b"")
    answers = _answers(world, asked)
    failed = body.find(b'data: {"error":')
    passed = body if failed < 0 else body[:failed]
    wholes = [whole_stream(answer) for answer in answers]
    assert any(whole.startswith(passed) for whole in wholes), f"{asked}: no backend said {passed!r}"
    if end is None or not asked.stayed:
        return
    if end.cause == "ok":
        assert failed < 0, f"{asked}: {end} {body!r}"
        assert got.complete, f"{asked}: {end} {got}"
        done = passed.rstrip().endswith(b"data: [DONE]")
        finished = b'"finish_reason":"stop"' in passed or b'"finish_reason":"length"' in passed
        assert done or finished, f"{asked}: {passed!r}"
    else:
        assert b"[DONE]" not in body, f"{asked}: {end} {body!r}"
        assert passed == b"" or passed.endswith((b"\n\n", b"\r\n\r\n")), f"{asked}: {passed!r}"
        if got.complete:
            assert body[failed:].count(b"data: ") == 1, f"{asked}: {end} {body!r}"
            assert failed >= 0, f"{asked}: {end} {body!r}"
            assert not cut_on_failure or asked.http10, f"{asked}: {end}"


def whole_stream(answer: Answer) -> bytes:
    """All that a backend says if nothing goes wrong, without comments."""
    steps = b"".join(answer.step(token) for token in range(answer.tokens))
    return answer.role() + steps + answer.finish() + answer.usage() + answer.done()


def _answers(world: World, asked: Asked) -> list[Answer]:
    answers = []
    for sim in world.sims.values():
        try:
            call = parse_chat(asked.body, sim.engine.models, Script())
        except RequestError:
            continue
        answers.append(Answer(call, sim.engine.seed))
    return answers
