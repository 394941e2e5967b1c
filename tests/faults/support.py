"""A gateway and its backends in the test's own loop, on real loopback sockets, with the books of both sides at hand.

`world()` stands before simulators, `mesh_before(*urls)` before whatever else answers, such as a `RawBackend`, whose
every byte the test writes. Since all of them share one loop, what the two sides say is of one instant.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from inferencemesh.config.load import from_document
from inferencemesh.core.events import Event
from inferencemesh.serving.gateway import Gateway
from inferencemesh.sim.server import SimServer
from inferencemesh.telemetry.log import Log
from tests.contract.support import Call, chat, post
from tests.runtime.inprocess import describe, settled, wait_for

TOLD_S = 1.0  # within which a backend hears of a departure, on a machine that has other work to do
TOKEN = b'"delta":{"content":"'  # of each event with a token; the role's has none
Records = list[dict[str, Any]]


class World:
    """A running gateway, and the simulators behind it if there are any."""

    def __init__(self, gateway: Gateway, log: Log, lines: list[bytes]) -> None:
        self.gateway = gateway
        self.log = log
        self._lines = lines
        self.sims: list[SimServer] = []

    @property
    def port(self) -> int:
        return self.gateway.port

    @property
    def sim(self) -> SimServer:
        (only,) = self.sims
        return only

    # -- the gateway's side --

    @property
    def totals(self) -> Any:
        return self.gateway.snapshot().totals

    def slots(self, number: int = 0) -> Any:
        """The ledger of one backend."""
        return self.gateway.snapshot().backends[number]

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the samples of `inferencemesh_NAME` that carry these labels."""
        return sum(
            sample.value
            for family in self.gateway.metrics_registry.collect()
            for sample in family.samples
            if sample.name == f"inferencemesh_{name}" and labels.items() <= sample.labels.items()
        )

    def logged(self, event: str) -> list[dict[str, Any]]:
        """What the log's writer has handed to its sink of this kind."""
        lines = [json.loads(line) for data in self._lines for line in data.splitlines()]
        return [line for line in lines if line["event"] == event]

    # -- the simulators' side --

    def heard(self, name: str) -> int:
        """The sum of one counter over the simulators."""
        return sum(int(str(sim.engine.state(requests=False)[name])) for sim in self.sims)

    def records(self) -> Records:
        """What the simulators know of each request, in order of arrival at each."""
        found: Records = []
        for sim in self.sims:
            requests: Any = sim.state()["requests"]
            found += requests.values()
        return found

    # -- both --

    async def open(self, script: str = "", *, stream: bool = True, **more: Any) -> Call:
        """A request on a connection of its own, its answer unread."""
        return await Call.open(self.port, post(chat(script, stream=stream, **more)))

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until `condition` holds."""
        await wait_for(condition, lambda: f"{describe(self.gateway)} {[sim.state() for sim in self.sims]}")

    async def settled(self) -> None:
        """Nothing is held for anybody on either side, and every book of the gateway is balanced."""
        await settled(self.gateway)
        at_rest = ("running", "waiting", "lingering")
        await self.until(lambda: all(self.heard(name) == 0 for name in at_rest))
        for backend in self.gateway.snapshot().backends:
            assert (backend.running, backend.draining) == (0, 0)
        for gauge in ("waiting", "running", "draining_oldest_seconds"):
            assert self.metric(gauge) == 0, gauge
        assert self.metric("slots", state="running") == self.metric("slots", state="draining") == 0

    @contextlib.asynccontextmanager
    async def watched(self, check: Callable[[], None]) -> AsyncIterator[None]:
        """Call `check` at every event of the gateway, and about every millisecond."""
        failures: list[BaseException] = []

        def look(_: Event | None = None) -> None:
            try:
                check()
            except Exception as failed:
                failures.append(failed)

        async def watch() -> None:
            while True:
                look()
                await asyncio.sleep(0.001)

        self.gateway.hub.subscribe(look)
        watching = asyncio.ensure_future(watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if failures:
            raise failures[0]


@contextlib.asynccontextmanager
async def mesh_before(
    *urls: str,
    slots: int = 2,
    engine: str = "openai",
    backend: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    sink: Callable[[bytes], object] | None = None,
    **sections: Any,
) -> AsyncIterator[World]:
    """A running gateway with the backends `a`, `b`, … at `urls`, and the model `demo` on all of them.

    An end made by us frees a slot as soon as the backend has closed too, unless `backend` says otherwise.
    """
    backends = [
        {
            "name": name,
            "url": url,
            "engine": engine,
            "slots": slots,
            "drain": {"policy": "grace", "grace": "0s"},
            "health": {"interval": "1h"},
            **(backend or {}),
        }
        for name, url in zip("abcd", urls, strict=False)
    ]
    document = {
        "server": {"port": 0, "shutdown_grace": "1ms", **sections.pop("server", {})},
        "admin": {"port": 0},
        "backends": backends,
        "models": [{"name": "demo", "backends": [b["name"] for b in backends], **(model or {})}],
        **sections,
    }
    lines: list[bytes] = []
    log = Log(format="json", sink=sink if sink is not None else lines.append)
    gateway = Gateway(from_document(document), log, seed=1)
    await gateway.start()
    made = World(gateway, log, lines)
    try:
        yield made
    finally:
        await gateway.shut_down()
        log.close()
        gc.unfreeze()  # `Gateway.start` freezes for a process that lives long; here there are many
    assert made.logged("bug") == []


@contextlib.asynccontextmanager
async def world(
    count: int = 1,
    *,
    engine_slots: int = 64,
    engine_queue: int | None = None,
    first: str = "",
    **more: Any,
) -> AsyncIterator[World]:
    """The same before `count` simulators of `engine_slots` each; `first` is a script for all that the first does."""
    async with contextlib.AsyncExitStack() as stack:
        scripts = [first] + [""] * (count - 1)
        sims = [
            SimServer(engine_slots, seed=number, queue=engine_queue, script=script)
            for number, script in enumerate(scripts)
        ]
        for sim in sims:
            await sim.start()
            stack.push_async_callback(sim.close)
        made = await stack.enter_async_context(mesh_before(*(sim.url for sim in sims), engine="sim", **more))
        made.sims = sims
        yield made


CONFIRM: dict[str, Any] = {"drain": {"policy": "confirm"}}


async def tokens(call: Call, count: int = 1) -> bytes:
    """Read an answer up to its `count`-th token."""
    answer = await call.content(TOKEN)
    while answer.body.count(TOKEN) < count:
        piece = await call.chunk()
        assert piece, answer.body
        answer.body += piece
    return answer.body


# --- a backend by hand ---------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """One request as it came to a raw backend, and what became of its connection."""

    headers: dict[str, str]
    body: bytes
    at: float  # the loop's time
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the gateway has closed its side, or reset
    gone_at: float = 0.0


Answering = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class RawBackend:
    """Answers as the test writes it, one task for each connection."""

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self.asked: list[Asked] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        loop = asyncio.get_running_loop()
        asked: Asked | None = None
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip("\r\n").split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                if first.startswith("GET "):  # a probe
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                    continue
                asked = Asked(headers, body, loop.time())
                self.asked.append(asked)
                await self._answer(asked, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if asked is not None:
                asked.gone_at = loop.time()
                asked.gone.set()
            writer.close()


@contextlib.asynccontextmanager
async def raw_backend(answer: Answering) -> AsyncIterator[RawBackend]:
    """A raw backend that listens. Its connections end with it."""
    backend = RawBackend(answer)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        task.add_done_callback(serving.discard)
        with contextlib.suppress(asyncio.CancelledError):  # the server logs what its tasks end with
            await backend.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    backend.port = server.sockets[0].getsockname()[1]
    try:
        yield backend
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()


def whole(
    body: bytes,
    *headers: str,
    status: str = "200 OK",
    kind: str = "application/json",
) -> bytes:
    """A response with a length, on the wire."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def piece(data: bytes) -> bytes:
    """One chunk of a chunked body, on the wire."""
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"


def delta(text: str, finish: str | None = None) -> bytes:
    """One event of a chat stream."""
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
