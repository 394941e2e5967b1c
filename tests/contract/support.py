"""Real processes and raw sockets for the contract's tests.

`gateway(document)` starts `inferencemesh serve` in its own process; `Call` is one request on one connection, with
every step (connect, send, head, events, leave) in the test's hands. Nothing here sleeps for a fixed time: `until`
waits for a condition and fails with what it last saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

Result = TypeVar("Result")
TIMEOUT_S = 20.0  # generous: the machine may be busy; every bound that a clause names is asserted by itself


def get_json(url: str) -> Any:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def get_text(url: str) -> str:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@dataclass
class Gateway:
    """A running gateway process."""

    process: subprocess.Popen[bytes]
    lines: list[dict[str, Any]]
    text: list[str]
    public: str = ""
    admin: str = ""
    exit_code: int | None = None

    @property
    def port(self) -> int:
        port = urlsplit(self.public).port
        assert port is not None
        return port

    def state(self) -> Any:
        return get_json(self.admin + "/api/state")

    def metrics(self) -> dict[str, float]:
        """Every sample by its name with labels, as it stands in the exposition."""
        samples = {}
        for line in get_text(self.admin + "/metrics").splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the samples of `inferencemesh_NAME` that carry these labels."""
        total = 0.0
        for key, value in self.metrics().items():
            family, _, rest = key.partition("{")
            if family == f"inferencemesh_{name}" and all(f'{k}="{v}"' in rest for k, v in labels.items()):
                total += value
        return total

    def requests_logged(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("event") == "request"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.exit_code = self.process.wait(TIMEOUT_S)
        return self.exit_code


@contextlib.contextmanager
def gateway(document: dict[str, Any]) -> Iterator[Gateway]:
    """Start a gateway with this configuration on free ports; stop it and check that it ended cleanly."""
    document = {**document}
    document["server"] = {"port": 0, **document.get("server", {})}
    document["admin"] = {"port": 0, **document.get("admin", {})}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mesh.yaml"
        path.write_text(json.dumps(document))
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "inferencemesh", "serve", "-c", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        running = Gateway(process, [], [])
        ready = threading.Event()

        def read() -> None:
            assert process.stdout is not None
            for raw in process.stdout:
                text = raw.decode(errors="replace").rstrip("\n")
                running.text.append(text)
                with contextlib.suppress(ValueError):
                    line = json.loads(text)
                    running.lines.append(line)
                    if line.get("event") == "ready":
                        running.public, running.admin = line["public"], line["admin"]
                        ready.set()
            ready.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            assert ready.wait(TIMEOUT_S), "the gateway did not become ready"
            assert running.public, "\n".join(running.text)
            yield running
            if process.poll() is None:
                running.stop()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            reader.join(TIMEOUT_S)
            if process.stdout is not None:
                process.stdout.close()
        bugs = [line for line in running.lines if line.get("event") == "bug" or line.get("level") == "error"]
        assert bugs == [], json.dumps(bugs, indent=1)
        stray = [text for text in running.text if not text.startswith("{")]
        assert stray == [], "\n".join(stray)


def mesh(sim_url: str, *, slots: int = 8, engine: str = "sim", **more: Any) -> dict[str, Any]:
    """A configuration with one simulated backend and the model `demo`."""
    model = {"name": "demo", "backends": ["sim"], **more.pop("model", {})}
    backend = {"name": "sim", "url": sim_url, "engine": engine, "slots": slots, **more.pop("backend", {})}
    return {"backends": [backend], "models": [model], **more}


def chat(script: str = "", *, stream: bool = True, model: str = "demo", **more: Any) -> bytes:
    """A chat request whose last message carries a script of the simulator."""
    content = f"Hello [[sim {script}]]" if script else "Hello"
    return json.dumps(
        {"model": model, "stream": stream, "messages": [{"role": "user", "content": content}], **more}
    ).encode()


def post(body: bytes, *headers: str, path: str = "/v1/chat/completions") -> bytes:
    """A whole request on the wire."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: test",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass
class Answer:
    """What came back on a connection."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    cut: bool = False  # the body ended without its proper end

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        """The data of each event."""
        blocks = self.body.replace(b"\r\n", b"\n").split(b"\n\n")
        return [line[6:] for block in blocks for line in block.split(b"\n") if line.startswith(b"data: ")]

    @property
    def error(self) -> Any:
        """The error object of the body, or of the last event."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            return json.loads(self.events[-1])["error"]
        return self.json["error"]


_open_calls: list[Call] = []


@dataclass
class Call:
    """One connection to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent_at: float = field(default_factory=time.monotonic)
    buffered: bytes = b""

    @classmethod
    async def open(cls, port: int, data: bytes = b"", *, limit: int = 2**16) -> Call:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection("127.0.0.1", port, limit=limit), TIMEOUT_S
        )
        call = cls(reader, writer)
        _open_calls.append(call)
        if data:
            call.send(data)
        return call

    def send(self, data: bytes) -> None:
        self.sent_at = time.monotonic()
        self.writer.write(data)

    async def head(self) -> Answer:
        """The status line and headers."""
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        first, *lines = raw.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            if line:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
        return Answer(int(first.split(" ")[1]), headers)

    async def body(self, answer: Answer) -> Answer:
        """The rest, whatever its framing."""
        if answer.headers.get("transfer-encoding") == "chunked":
            while True:
                piece = await self.chunk()
                if piece is None:
                    answer.cut = True
                    break
                if piece == b"":
                    break
                answer.body += piece
        elif "content-length" in answer.headers:
            length = int(answer.headers["content-length"])
            try:
                answer.body = await asyncio.wait_for(self.reader.readexactly(length), TIMEOUT_S)
            except (asyncio.IncompleteReadError, ConnectionError):
                answer.cut = True
        return answer

    async def chunk(self) -> bytes | None:
        """One chunk; b"" is the last, None a cut."""
        try:
            size = int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), TIMEOUT_S), 16)
            piece = await asyncio.wait_for(self.reader.readexactly(size + 2), TIMEOUT_S)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return piece[:-2]

    async def answer(self) -> Answer:
        return await self.body(await self.head())

    async def content(self, text: bytes = b'"content":"') -> Answer:
        """Read up to the first content event."""
        answer = await self.head()
        assert answer.status == 200, await self.body(answer)
        while text not in answer.body:
            piece = await self.chunk()
            assert piece, f"the stream ended before content: {answer.body!r}"
            answer.body += piece
        return answer

    async def closed(self) -> bool:
        """Whether the gateway closes the connection, after whatever it still sends."""
        try:
            await asyncio.wait_for(self.reader.read(-1), TIMEOUT_S)
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def leave(self) -> None:
        """Close both directions."""
        self.writer.close()

    def reset(self) -> None:
        """Leave with a reset."""
        self.writer.transport.abort()

    def pause(self) -> None:
        """Take nothing more."""
        transport: Any = self.writer.transport
        transport.pause_reading()

    def resume(self) -> None:
        """Take again."""
        transport: Any = self.writer.transport
        transport.resume_reading()

    def half_close(self) -> None:
        self.writer.write_eof()


def drive(test: Coroutine[Any, Any, Result]) -> Result:
    """Run a test's coroutine, and see that its connections are closed before the loop is."""

    async def whole() -> Result:
        try:
            return await test
        finally:
            for call in _open_calls:
                call.writer.transport.abort()
            await asyncio.gather(*(call.writer.wait_closed() for call in _open_calls), return_exceptions=True)
            _open_calls.clear()

    return asyncio.run(whole())


async def ask(port: int, body: bytes, *headers: str) -> Answer:
    """One request on a connection of its own."""
    call = await Call.open(port, post(body, *headers))
    try:
        return await call.answer()
    finally:
        call.leave()


async def until(
    condition: Callable[[], Any], *, within_s: float = TIMEOUT_S, show: Callable[[], Any] | None = None
) -> float:
    """Wait until `condition` holds; returns how long that took, in seconds."""
    began = time.monotonic()
    while True:
        held = await asyncio.to_thread(condition)
        took = time.monotonic() - began
        if held:
            return took
        assert took < within_s, f"not within {within_s} s: {show() if show else condition}"
        await asyncio.sleep(0.005)


def idle(state: Any) -> bool:
    """Nothing is held for anybody: no slot, no place, no running request (contract A5)."""
    return (
        all(b["slots"]["running"] == 0 and b["slots"]["draining"] == 0 for b in state["backends"])
        and state["totals"]["waiting"] == 0
        and state["totals"]["running"] == 0
    )


def adds_up(state: Any) -> bool:
    """The invariant, as the live state shows it (contract F2)."""
    totals = state["totals"]
    ended = sum(totals[key] for key in ("completed", "failed", "cancelled", "expired"))
    return bool(totals["accepted"] == totals["waiting"] + totals["running"] + ended)
