"""Overload, headers, accounting and health at their edges: scenarios O, H and U of docs/field-faults.md."""

from __future__ import annotations

import asyncio
import gc
import itertools
import zlib
from collections import Counter
from hashlib import sha256
from typing import Any

import pytest

from inferencemesh.core.request import Lease, Request
from inferencemesh.runtime.attempt import Attempt
from inferencemesh.runtime.drain import Drain
from inferencemesh.runtime.exchange import Exchange
from inferencemesh.runtime.http1.responder import Responder
from inferencemesh.runtime.http1.server import IncomingRequest
from inferencemesh.runtime.relay import StreamRelay
from inferencemesh.sim.server import SimServer
from inferencemesh.wire.chat import ChatTracker
from tests.contract.support import Call, ask, chat, drive, gateway, mesh, post
from tests.faults.support import (
    CONFIRM,
    DONE,
    STREAM_HEAD,
    Answering,
    Asked,
    World,
    delta,
    mesh_before,
    piece,
    raw_backend,
    tokens,
    whole,
    world,
)
from tests.simproc import sim_process
from tests.virtual.callers import Line
from tests.virtual.loop import VirtualLoop, run
from tests.virtual.net import Weather
from tests.virtual.world import world as virtual_world

# --- O: no total of the client's own -------------------------------------------------------------------------------


def test_O12_a_stream_outlives_every_other_limit():
    """Tokens keep coming: the stream ends with its last, long after every limit but the deadline has passed."""
    limits = {"header_timeout": "400ms", "body_timeout": "400ms", "keepalive": "400ms"}
    timeouts = dict.fromkeys(("connect", "first_content", "send", "cleanup"), "400ms")

    async def main() -> None:
        async with world(
            slots=1,
            server={"limits": limits},
            timeouts={**timeouts, "idle": "1s", "total": "60s"},
            stream={"prefetch_max": "400ms"},
        ) as made:
            answer = await ask(made.port, chat("tokens=40 interval=40ms"))
            assert (answer.status, answer.cut) == (200, False)
            assert answer.body.endswith(DONE)
            assert made.heard("completed") == made.totals.completed == 1
            assert made.heard("tokens_made") == 40
            await made.settled()

    drive(main())


def test_O12_a_stream_of_400_s_ends_by_itself():
    """With the limits as they come, under virtual time: nothing of ours ends a steady stream after 300 s."""
    loop = VirtualLoop(12)

    def document(urls: dict[str, str]) -> dict[str, Any]:
        backends = [{"name": name, "url": url, "engine": "sim", "slots": 1} for name, url in urls.items()]
        return {"backends": backends, "models": [{"name": "demo", "backends": list(urls)}]}

    async def main() -> None:
        async with virtual_world(loop, document, {"a": SimServer(1)}, Weather()) as made:
            began = loop.time()
            line = Line()
            await (await made.net.connect(made.gateway.port, surely=True)).attach(line)
            line.transport.write(post(chat("tokens=800 interval=500ms")))
            assert await line.until(1, 500.0)
            (response,) = line.reader.responses
            assert response.status == 200
            assert response.body.count(b'"delta":{"content":"') == 800
            assert response.body.endswith(DONE)
            assert 399 < loop.time() - began < 410
            assert made.sims["a"].state()["completed"] == made.gateway.snapshot().totals.completed == 1
            line.transport.close()

    run(loop, main())


# --- O, U: a backend that asks for time ----------------------------------------------------------------------------


def in_turn(*answers: bytes) -> Answering:
    """Each request gets the next of these answers, and those behind them the last."""
    left = list(answers)

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])

    return answer


def full(retry_after: str | None) -> bytes:
    headers = [] if retry_after is None else [f"retry-after: {retry_after}"]
    return whole(b'{"error":{"message":"full"}}', *headers, status="429 Too Many Requests")


FINE = whole(b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}')


def test_O14_no_try_before_the_time_that_the_backend_named_last():
    """1 s, then 20 s: the second try comes after the first of them, and there is no third."""

    async def main() -> None:
        async with (
            raw_backend(in_turn(full("1"), full("20"))) as backend,
            mesh_before(backend.url, slots=4, model={"queue": {"timeout": "1200ms"}}) as made,
        ):
            waiting = asyncio.ensure_future(ask(made.port, chat()))
            await made.until(lambda: made.metric("retries_total", reason="full") == 2)
            second = await ask(made.port, chat())
            first = await waiting
            for answer in (first, second):
                assert (answer.status, answer.headers["x-mesh-code"]) == (503, "queue_timeout")
            one, two = backend.asked
            assert two.at - one.at >= 1.0
            assert int(first.headers["retry-after"]) >= 18, "the backend's own time is not shortened"
            assert int(second.headers["retry-after"]) >= 16
            assert made.metric("retries_total", reason="full") == 2
            assert made.slots().believed == 0
            await made.settled()

    drive(main())


@pytest.mark.parametrize("times", [("20", "1"), ("1", "20")], ids="-then-".join)
def test_O14_of_two_answers_at_once_the_later_time_holds(times):
    async def main() -> None:
        both = asyncio.Event()
        given = iter(times)

        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            mine = next(given)
            if mine == times[1]:
                both.set()
            await both.wait()
            if mine == times[1]:  # behind the other one's
                await asyncio.sleep(0.02)
            writer.write(full(mine))

        async with (
            raw_backend(answer) as backend,
            mesh_before(backend.url, slots=2, model={"queue": {"timeout": "1200ms"}}) as made,
        ):
            answers = await asyncio.gather(*(ask(made.port, chat()) for _ in range(2)))
            assert len(backend.asked) == 2, "it was tried again"
            for got in answers:
                assert got.headers["x-mesh-code"] == "queue_timeout"
                assert int(got.headers["retry-after"]) >= 17
            await made.settled()

    drive(main())


@pytest.mark.parametrize("value", [None, "soon", "-5", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_O14_what_is_no_time_to_wait_is_ignored(value):
    """Then our own back-off counts, and the caller is served by the next try."""

    async def main() -> None:
        async with (
            raw_backend(in_turn(full(value), FINE)) as backend,
            mesh_before(backend.url, slots=2) as made,
        ):
            answer = await ask(made.port, chat(stream=False))
            assert answer.status == 200
            one, two = backend.asked
            assert two.at - one.at > 0.2
            assert made.totals.completed == 1
            await made.settled()

    drive(main())


def test_O14_an_absurd_time_closes_a_backend_for_a_minute_at_most():
    async def main() -> None:
        async with (
            raw_backend(in_turn(full("9" * 40), FINE)) as backend,
            mesh_before(backend.url, slots=2, model={"queue": {"timeout": "600ms"}}) as made,
        ):
            answer = await ask(made.port, chat())
            assert answer.headers["x-mesh-code"] == "queue_timeout"
            assert 58 <= int(answer.headers["retry-after"]) <= 60
            assert len(backend.asked) == 1
            await made.settled()

    drive(main())


def test_U11_callers_come_back_no_earlier_than_the_backend_asked_for():
    """429 with 54 s: whoever is refused meanwhile is told what is left of them, and nobody is sent there."""

    async def main() -> None:
        async with world(slots=4, model={"queue": {"timeout": "300ms", "max_waiting": 2}}) as made:
            began = asyncio.get_running_loop().time()
            refused = [await ask(made.port, chat("full retry_after=54"))]
            refused += await asyncio.gather(*(ask(made.port, chat("tokens=1")) for _ in range(6)))
            passed_s = asyncio.get_running_loop().time() - began
            codes = Counter(answer.headers["x-mesh-code"] for answer in refused)
            assert codes == {"queue_timeout": 3, "queue_full": 4}
            for answer in refused:
                assert answer.status == 503
                assert int(answer.headers["retry-after-ms"]) / 1000 >= 54 - passed_s
                assert int(answer.headers["retry-after"]) >= 54 - passed_s
            assert (made.heard("received"), made.heard("refused")) == (1, 1)
            await made.settled()

    drive(main())


# --- O: memory -----------------------------------------------------------------------------------------------------

OURS = (
    *(Attempt, ChatTracker, Drain, Exchange, IncomingRequest),
    *(Lease, Request, Responder, StreamRelay),
)


LAZY = 80


def alive() -> Counter[str]:
    """How many objects of single requests there are in this process."""
    gc.collect()
    return Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, OURS))


def test_O16_nothing_of_a_request_outlives_it():
    """Hundreds of requests with every kind of end: afterwards no object of theirs is left."""
    scripts = [
        "tokens=2",
        "tokens=2",
        "status=500",
        "cut=after:1",
        "end=after:1",
        "hang=after:1",
        "full times=1",
    ]

    async def one(made: World, number: int) -> None:
        script = scripts[number % len(scripts)]
        call = await made.open(script, stream=number % 3 > 0 or script.startswith("hang"))
        if (answer := await call.head()).status != 200 or not script.startswith("hang"):
            await call.body(answer)
        call.reset()

    async def main() -> None:
        queue = {"max_waiting": 4, "timeout": "100ms"}
        async with world(slots=4, model={"queue": queue}) as made:
            before = alive()
            for first in range(0, 420, 14):
                await asyncio.gather(*(one(made, first + number) for number in range(14)))
            await made.settled()
            await made.until(lambda: made.gateway.http.connections == 0)
            totals = made.totals
            assert min(totals.completed, totals.failed, totals.cancelled, totals.refused) > 10
            left = alive() - before
            # Entries of heaps are dropped when they are more than those of the living by LAZY: a bound, not a leak.
            assert left.pop("Request", 0) <= LAZY
            assert left.pop("Lease", 0) <= LAZY
            # A connection that is kept for later may still know what it was last used for.
            kept = sum(upstream.pool.idle for upstream in made.gateway.upstreams.values())
            assert all(count <= kept for count in left.values()), (left, kept)
            assert left["Exchange"] == left["Drain"] == 0, left

    drive(main())


class Caller(asyncio.Protocol):
    """Streams one after the other on one connection, with as little of its own cost as can be."""

    def __init__(self, request: bytes, count: int) -> None:
        self.request = request
        self.left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tail = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-64:]
        if self.tail.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
            self.tail = b""
            self.left -= 1
            if self.left:
                self.transport.write(self.request)
            elif not self.done.done():
                self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError(f"closed with {self.left} to go"))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_O16_a_hundred_thousand_streams_leave_memory_where_it_was():
    """The gateway in a process of its own: its resident memory after 20,000 streams and after 100,000."""
    request = post(chat("tokens=2"))
    rounds, callers, each = 20, 8, 625

    async def some(port: int) -> None:
        loop = asyncio.get_running_loop()
        people = [
            (await loop.create_connection(lambda: Caller(request, each), "127.0.0.1", port))[1]
            for _ in range(callers)
        ]
        await asyncio.gather(*(person.done for person in people))
        for person in people:
            person.transport.close()

    def resident(running: Any) -> float:
        return float(running.metrics()["process_resident_memory_bytes"]) / 2**20

    with sim_process(slots=16) as sim, gateway(mesh(sim.url, slots=8)) as running:
        running.lines = Forgetful()
        running.text = Forgetful()
        seen = []
        for _ in range(rounds):
            drive(some(running.port))
            seen.append(resident(running))
        state = running.state()
        assert state["totals"]["completed"] == rounds * callers * each == 100_000
        assert sim.state(requests=False)["completed"] == 100_000
    assert seen[-1] - seen[3] < 3, seen


class Forgetful(list[Any]):
    """A list of lines that keeps those of interest only: the test shall not hold 100,000."""

    def append(self, line: Any) -> None:
        if isinstance(line, str):
            if not line.startswith("{"):
                super().append(line)
        elif line.get("event") == "bug" or line.get("level") == "error":
            super().append(line)


# --- O: failover ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize(
    ("script", "reason", "counter"), [("full", "full", "refused"), ("status=503", "503", "failed")]
)
def test_O18_a_429_without_headers_and_a_503_lead_to_the_other_backend(script, reason, counter, stream):
    """The first of two backends always says so: every caller is served by the second."""

    async def main() -> None:
        retries = {"attempts": 2, "budget": 1}
        async with world(2, slots=2, first=script, retries=retries) as made:
            for _ in range(4):
                answers = await asyncio.gather(
                    *(ask(made.port, chat("tokens=2", stream=stream)) for _ in range(2))
                )
                assert [answer.status for answer in answers] == [200, 200]
                await made.settled()
            bad, good = (sim.state() for sim in made.sims)
            assert (good["completed"], good["received"]) == (8, 8)
            assert bad["completed"] == 0
            assert bad[counter] == bad["received"] == made.metric("retries_total", backend="a", reason=reason)
            assert int(str(bad["received"])) >= 1, "it was to be asked at all"
            assert (made.totals.completed, made.totals.accepted) == (8, 8)

    drive(main())


# --- H: headers, encodings, connections ----------------------------------------------------------------------------

PLAIN = b'{"choices":[{"index":0,"message":{"content":"x \xe2\x88\x91"},"finish_reason":"stop"}]}'
EVENTS = [delta("one"), delta("two ∑"), delta("", "stop"), DONE]
WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def packed(encoding: str, parts: list[bytes]) -> list[bytes]:
    """Each part compressed so that it can be read when it has come."""
    packer = zlib.compressobj(wbits=WBITS[encoding])
    out = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in parts]
    out[-1] += packer.flush()
    return out


@pytest.mark.parametrize("encoding", ["gzip", "X-GZIP", "deflate"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_H2_a_compressed_answer_is_decoded_as_it_comes(encoding, stream):
    """Identity is asked for; what is compressed all the same arrives as plain text, each event with its read."""

    async def main() -> None:
        go_on = asyncio.Event()

        async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
            parts = packed(encoding.lower(), EVENTS if stream else [PLAIN])
            if not stream:
                writer.write(whole(parts[0], f"content-encoding: {encoding}"))
                return
            writer.write(STREAM_HEAD + f"content-encoding: {encoding}\r\n\r\n".encode() + piece(parts[0]))
            await go_on.wait()
            writer.write(b"".join(map(piece, parts[1:])) + b"0\r\n\r\n")

        async with raw_backend(answer) as backend, mesh_before(backend.url) as made:
            call = await made.open(stream=stream)
            if stream:
                got = await call.content()
                assert got.body == EVENTS[0], "the first event has passed before the second is there"
                go_on.set()
                got = await call.body(got)
                assert got.body == b"".join(EVENTS)
            else:
                got = await call.answer()
                assert got.body == PLAIN
            assert got.status == 200
            assert not got.cut
            assert "content-encoding" not in got.headers
            assert backend.asked[0].headers["accept-encoding"] == "identity"
            assert made.totals.completed == 1
            call.leave()
            await made.settled()

    drive(main())


BROKEN: dict[str, tuple[str, bytes]] = {
    "br": ("br", b"\x8b\x02\x80x\x03"),
    "zstd": ("zstd", b"\x28\xb5\x2f\xfd\x04\x00\x09\x00\x00x\x99\xe9\xd8\x51"),
    "two-codings": ("gzip, br", b"\x8b\x02\x80x\x03"),
    "plain-called-gzip": ("gzip", PLAIN),
    "gzip-cut": ("gzip", packed("gzip", [PLAIN])[0][:-12]),
    "gzip-called-plain": ("identity", packed("gzip", [PLAIN])[0]),
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize(("encoding", "body"), BROKEN.values(), ids=BROKEN)
def test_H2_what_cannot_be_read_is_an_error_and_no_empty_answer(encoding, body, stream):
    kind = "text/event-stream" if stream else "application/json"

    async def main() -> None:
        answer = in_turn(whole(body, f"content-encoding: {encoding}", kind=kind))
        async with raw_backend(answer) as backend, mesh_before(backend.url, slots=1) as made:
            for _ in range(2):
                got = await ask(made.port, chat(stream=stream))
                unfinished = stream and encoding == "identity"  # bytes that hold no event
                code = "upstream_incomplete" if unfinished else "upstream_protocol"
                assert (got.status, got.headers["x-mesh-code"]) == (502, code)
                assert got.json["error"]["code"] == code
                assert "content-encoding" not in got.headers
                await made.settled()
            assert len(backend.asked) == made.totals.failed == 2

    drive(main())


def test_H6_options_and_head_are_answered_without_admission():
    """Every slot and place is taken: preflights and HEAD are answered all the same, without a key where none is due."""
    key = sha256(b"secret").hexdigest()
    mine = "authorization: Bearer secret"
    preflight = ("origin: http://page", "access-control-request-method: POST")

    async def request(made: World, line: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
        text = "\r\n".join([f"{line} HTTP/1.1", "host: test", "connection: close", *headers])
        call = await Call.open(made.port, text.encode() + b"\r\n\r\n")
        answer = await call.head()
        rest = await asyncio.wait_for(call.reader.read(-1), 20)
        call.leave()
        return answer.status, answer.headers, rest

    async def main() -> None:
        tenants = [{"name": "t", "keys": [{"sha256": key}]}]
        async with world(slots=1, tenants=tenants, model={"queue": {"max_waiting": 1}}) as made:
            holders = [await Call.open(made.port, post(chat("hang=after:1"), mine)) for _ in range(2)]
            await made.until(lambda: (made.totals.running, made.totals.waiting) == (1, 1))
            before = made.totals
            for path, allowed in (
                ("/v1/chat/completions", "POST, OPTIONS"),
                ("/v1/models", "GET, HEAD, OPTIONS"),
                ("/v1/models/demo", "GET, HEAD, OPTIONS"),
                ("/health", "GET, HEAD, OPTIONS"),
            ):
                status, headers, rest = await request(made, f"OPTIONS {path}", *preflight)
                assert (status, headers["allow"], rest) == (204, allowed, b"")
                assert not any(name.startswith("access-control-") for name in headers)
            for path in ("/v1/models", "/v1/models/demo", "/health", "/health/live"):
                status, headers, rest = await request(made, f"HEAD {path}", mine)
                assert (status, rest) == (200, b"")
                assert int(headers["content-length"]) > 10
                _, like, body = await request(made, f"GET {path}", mine)
                assert headers["content-length"] == like["content-length"] == str(len(body))
            assert (await request(made, "OPTIONS /v1/nothing"))[0] == 404
            assert (await request(made, "HEAD /v1/models"))[0] == 401
            status, headers, rest = await request(made, "HEAD /v1/chat/completions", mine)
            assert (status, headers["allow"], rest) == (405, "POST, OPTIONS", b"")
            assert made.totals == before
            assert made.heard("received") == 1
            for holder in holders:
                holder.leave()
            await made.settled()

    drive(main())


def test_H8_two_hundred_streams_that_fail_keep_no_place_in_the_pool():
    """However a backend ends its stream: no connection stays taken, and request 201 is served at once."""
    faults = ["error=after:1", "cut=after:1", "end=after:1", "drop=after:1", "error=first", "status=500"]

    async def main() -> None:
        async with world(slots=10, retries={"attempts": 1}) as made:
            for first in range(0, 200, 10):
                scripts = [faults[(first + number) % len(faults)] for number in range(10)]
                answers = await asyncio.gather(*(ask(made.port, chat(script)) for script in scripts))
                assert all(b"[DONE]" not in answer.body for answer in answers)
                await made.settled()
            assert (made.totals.failed, made.heard("received")) == (200, 200)
            (pool,) = (upstream.pool for upstream in made.gateway.upstreams.values())
            assert pool.in_use == 0
            assert pool.idle <= 10
            assert (await ask(made.port, chat("tokens=2"))).status == 200
            assert made.metric("admission_wait_seconds_count") == 0

    drive(main())


# --- U: accounting and health --------------------------------------------------------------------------------------


def test_U5_departures_are_no_failures_of_the_backend():
    """100 callers leave a healthy backend, before and after its first token: its breaker hears of none of them."""
    breaker = {"breaker": {"min_requests": 3, "ratio": 0.05}}

    async def main() -> None:
        async with world(2, slots=5, backend=breaker, retries={"attempts": 1}) as made:
            for number in range(10):
                script = ("hang=after:1", "hang=headers", "hang=first", "tokens=900 interval=5ms")[number % 4]
                calls = [await made.open(script, stream=number % 3 > 0) for _ in range(10)]
                await made.until(lambda: made.heard("running") == 10)
                for call in calls:
                    call.leave()
                await made.settled()
            # Nor are the mistakes of callers, and what is full.
            for script in ("status=400", "status=422", "full times=1"):
                await asyncio.gather(*(ask(made.port, chat(script)) for _ in range(4)))
            await made.settled()
            assert made.heard("aborted") == made.totals.cancelled == 100
            assert made.totals.failed == 0
            assert made.metric("requests_total", cause="client_gone") == 100
            assert made.metric("breaker_state") == 0
            # It is the breaker that would have opened: a few failures do it.
            for _ in range(4):
                await ask(made.port, chat("status=500"))
            assert made.metric("breaker_state") > 0

    drive(main())


def test_U9_a_timeout_is_not_followed_by_a_second_generation():
    """Two backends, retries allowed: a request that was sent and not answered is one generation, at one of them."""

    async def main() -> None:
        retries = {"attempts": 3, "budget": 1, "on": ["connect", 500, 502, 503, 504]}
        timeouts = {"first_content": "200ms"}
        async with world(2, slots=1, backend=CONFIRM, retries=retries, timeouts=timeouts) as made:
            for number in range(1, 3):
                answer = await ask(made.port, chat("hang=headers"))
                assert (answer.status, answer.headers["x-mesh-code"]) == (504, "first_content_timeout")
                assert made.heard("received") == number
            await made.settled()
            assert made.heard("aborted") == 2
            assert made.metric("retries_total") == 0

    drive(main())


def test_U9_a_second_attempt_starts_when_the_slot_of_the_first_is_free():
    """One slot, tried again after a 503 and behind a timeout: never two at work, each attempt under its own id."""

    async def main() -> None:
        retries = {"attempts": 2, "budget": 1}
        timeouts = {"first_content": "200ms"}
        async with world(slots=1, backend=CONFIRM, retries=retries, timeouts=timeouts) as made:

            def check() -> None:
                view = made.slots()
                assert made.heard("running") <= view.running + view.draining <= 1

            async with made.watched(check):
                again = await ask(made.port, chat("tokens=2 status=503 times=1"), "x-request-id: mine")
                assert (again.status, again.headers["x-request-id"]) == (200, "mine")
                late, behind = await asyncio.gather(
                    ask(made.port, chat("tokens=500 first=400ms interval=20ms linger=300ms")),
                    ask(made.port, chat("tokens=2")),
                )
                # Whoever came first: the other one began when the engine had stopped.
                assert (late.status, behind.status) == (504, 200)
                await made.settled()
            ids: Any = made.sim.state()["ids"]
            assert len(set(ids)) == len(ids) == 4
            assert all(key.startswith("mesh-") for key in ids), ids
            assert made.heard("peak_running") == 1
            assert (made.heard("failed"), made.heard("completed"), made.heard("aborted")) == (1, 2, 1)
            assert made.metric("drains_total", evidence="reported") == made.metric("drains_total") == 1

    drive(main())


def test_U15_an_engine_that_never_stops_is_alarmed_and_drained_up_to_the_limit():
    """One slot is lost to a request that runs for ever. It is said aloud, the other serves, and there is an end."""
    drain = {"drain": {"policy": "worst_case", "overdue": "200ms"}}

    async def main() -> None:
        async with world(slots=2, backend=drain, timeouts={"total": "1s"}) as made:
            sent_at = asyncio.get_running_loop().time()
            call = await made.open("hang=after:1 ignore_disconnect")
            await tokens(call)
            call.leave()
            await made.until(lambda: made.gateway.state()["degraded"] == ["backend a: drain_overdue"])
            assert made.gateway.ready()[0], "its other slot serves"
            view = made.slots()
            assert (view.draining, view.free, view.up) == (1, 1, True)
            assert made.metric("draining_oldest_seconds") >= 0.2
            assert (await ask(made.port, chat("tokens=2"))).status == 200
            assert made.slots().draining == 1
            await made.until(lambda: made.slots().draining == 0)
            assert asyncio.get_running_loop().time() - sent_at >= 0.9, "it ended before the limit"
            assert made.gateway.state()["degraded"] == []
            assert made.slots().free == 2
            assert made.metric("drains_total", evidence="limit") == made.metric("drains_total") == 1
            await made.until(lambda: made.logged("drain_overdue") and made.logged("drain_unconfirmed"))
            assert len(made.logged("drain_overdue")) == 1
            assert made.logged("drain_overdue")[0]["backend"] == "a"
            assert made.heard("running") == made.heard("lingering") == 1, "the engine still holds it"
            assert made.heard("peak_running") == 2

    drive(main())


def test_A1_an_engine_that_says_that_it_goes_on_is_believed_beyond_the_limit():
    """Under `confirm` no time speaks against its own word: the slot is not given out while it works."""
    drain = {"drain": {"policy": "confirm", "overdue": "200ms"}}

    async def main() -> None:
        async with world(slots=1, backend=drain, timeouts={"total": "1s", "cleanup": "200ms"}) as made:
            sent_at = asyncio.get_running_loop().time()
            call = await made.open("tokens=40 interval=50ms ignore_disconnect")
            await tokens(call)
            call.leave()
            await made.until(lambda: made.gateway.state()["degraded"] == ["backend a: drain_overdue"])
            await made.until(lambda: made.slots().draining == 0)
            assert asyncio.get_running_loop().time() - sent_at >= 1.9, "it ended before the engine's own end"
            assert made.metric("drains_total", evidence="reported") == made.metric("drains_total") == 1
            assert (await ask(made.port, chat("tokens=2"))).status == 200
            assert made.heard("peak_running") == 1
            assert made.gateway.state()["degraded"] == []

    drive(main())


def test_U19_nobody_overtakes_himself():
    """Two tenants with 20 numbered requests each, one slot, one of them refused as full at first."""
    keys = {name: sha256(name.encode()).hexdigest() for name in ("x", "y")}

    async def main() -> None:
        tenants = [{"name": name, "keys": [{"sha256": key}]} for name, key in keys.items()]
        queue = {"max_waiting": 40, "timeout": "60s"}
        async with world(slots=1, tenants=tenants, model={"queue": queue}) as made:
            holder = await Call.open(made.port, post(chat("hang=after:1"), "authorization: Bearer x"))
            await tokens(holder)
            calls = []
            for number, name in itertools.product(range(1, 21), ("x", "y")):
                # A request is told by how many tokens it asks for: 1 to 20 are those of x.
                made_of = number if name == "x" else 20 + number
                script = f"tokens={made_of}" + (" full times=1" if number == 5 else "")
                calls.append(await Call.open(made.port, post(chat(script), f"authorization: Bearer {name}")))
                await made.until(lambda: made.totals.waiting == len(calls))
            holder.leave()
            for call in calls:
                answer = await call.answer()
                assert (answer.status, answer.cut) == (200, False)
                call.leave()
            await made.settled()
            served = [record["tokens"] for record in made.records() if record["state"] == "completed"]
            assert [count for count in served if count <= 20] == list(range(1, 21))
            assert [count for count in served if count > 20] == list(range(21, 41))
            assert made.heard("refused") == made.metric("retries_total", reason="full") == 2
            assert made.heard("peak_running") == 1
            # Neither tenant was kept waiting by the other one.
            turns = ["x" if count <= 20 else "y" for count in served]
            assert max(len(list(run)) for _, run in itertools.groupby(turns)) <= 2, turns

    drive(main())


def test_U21_those_who_left_the_line_reach_no_backend():
    """20 wait, 15 of them leave: the backend hears of the other five only."""

    async def main() -> None:
        async with world(slots=1, model={"queue": {"max_waiting": 20, "timeout": "60s"}}) as made:
            holder = await made.open("hang=after:1")
            await tokens(holder)
            waiters = [await made.open("tokens=2") for _ in range(20)]
            await made.until(lambda: made.totals.waiting == 20)
            stay, go = waiters[::4], [w for n, w in enumerate(waiters) if n % 4]
            for waiter in go:
                waiter.leave()
            await made.until(lambda: made.totals.waiting == 5)
            holder.leave()
            for waiter in stay:
                assert (await waiter.answer()).status == 200
                waiter.leave()
            await made.settled()
            assert (made.heard("received"), made.heard("completed")) == (6, 5)
            assert made.metric("cancellations_total", stage="waiting") == 15

    drive(main())
