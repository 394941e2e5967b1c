"""Requests and responses in order, keep-alive, endings, refusals, shutdown."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from inferencemesh.runtime.http1 import Answer, BodyPlan, ByteBudget, HttpServer, ServerLimits
from tests.runtime.http1.support import (
    Caller,
    Recorder,
    both_loops,
    echo,
    get,
    post,
    run,
    serving,
    turns,
    until,
)


@both_loops
def test_requests_of_all_kinds_on_one_connection(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app) as server, Caller.to(server) as caller:
            for data, body in (
                (get("/a"), b"/a "),
                (post(b"xyz"), b"/ xyz"),
                (b"\r\n" + get("/b"), b"/b "),
                (post(b""), b"/ "),
                (get("http://elsewhere/c"), b"/c "),
            ):
                caller.send(data)
                reply = await caller.reply()
                assert (reply.status, reply.body, reply.closes) == (200, body, False)
                assert reply.headers["server"] == "inferencemesh"
                assert reply.headers["date"].endswith(" GMT")
            assert server.connections == 1
            request = app.calls[0][0]
            assert request.peer == "127.0.0.1"
            assert request.head_at <= asyncio.get_running_loop().time()
            assert request.conn is not None

    run(main(), factory)


@both_loops
def test_a_request_cut_at_every_byte(factory):
    async def main():
        app = Recorder(echo)
        data = post(b"abc", "X: y", path="/p")
        async with serving(app) as server, Caller.to(server) as caller:
            for cut in range(1, len(data)):
                caller.send(data[:cut])
                await asyncio.sleep(0)
                await asyncio.sleep(0.0005)
                caller.send(data[cut:])
                assert (await caller.reply()).body == b"/p abc"
            for byte in data:
                caller.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await caller.reply()).body == b"/p abc"
            assert not app.errors

    run(main(), factory)


@both_loops
def test_pipelined_requests_are_answered_in_order_one_at_a_time(factory):
    async def main():
        app = Recorder()
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(get("/1") + post(b"two", path="/2") + get("/3"))
            for number in (1, 2, 3):
                await until(lambda number=number: len(app.calls) == number)
                await turns(3)
                assert len(app.calls) == number
                echo(*app.calls[-1])
            assert [(await caller.reply()).body for _ in range(3)] == [b"/1 ", b"/2 two", b"/3 "]
            assert not app.departed

    run(main(), factory)


@both_loops
def test_an_error_behind_a_running_request_waits_for_its_turn(factory):
    async def main():
        app = Recorder()
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(get("/1") + b"GET / HTTP/9.9\r\n\r\n" + get("/3"))
            await until(lambda: app.calls)
            echo(*app.calls[0])
            assert (await caller.reply()).body == b"/1 "
            assert (await caller.reply()).status == 400
            assert await caller.rest() == b""
            assert len(app.calls) == 1

    run(main(), factory)


@both_loops
@pytest.mark.parametrize(
    "pipelined", [b"", get("/behind"), get("/x") * 30], ids=["alone", "one behind", "many behind"]
)
@pytest.mark.parametrize("way", ["half_close", "abort", "reset"])
def test_departure_is_seen_at_once_and_told_once(factory, way, pipelined):
    """Contract B4; also behind pipelined requests, which hide it in ASGI servers."""

    async def main():
        app = Recorder()
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(get("/1") + pipelined)
            await until(lambda: app.calls)
            responder = app.calls[0][1]
            if len(pipelined) > 100:
                responder.start(200, [], length=None, first=b"x")  # in the middle of a stream
            getattr(caller, way)()
            await until(lambda: app.departed)
            assert app.departed == [responder]
            assert responder.departed
            assert responder.departure == "client_gone"
            # Whatever the app still does is dropped without an exception.
            responder.write(b"data")
            responder.start(200, [], length=None)
            responder.send(200, [], b"late")
            responder.finish(b"late")
            responder.cut()
            assert responder.unsent_bytes() == 0
            with pytest.raises(ConnectionError):
                await responder.flushed()
            late: list[str] = []
            responder.listen(on_departure=lambda: late.append("told"))
            assert late == ["told"]
            await until(lambda: server.connections == 0)
            assert len(app.calls) == 1
            assert app.departed == [responder]
            assert not responder.finished

    run(main(), factory)


@both_loops
def test_more_than_64_kib_behind_a_request_is_departure(factory):
    async def main():
        app = Recorder()
        async with serving(app) as server:
            async with Caller.to(server) as caller:
                caller.send(get("/1"))
                await until(lambda: app.calls)
                caller.send(b"x" * 65536)
                await turns()
                assert not app.departed
                caller.send(b"x")
                await until(lambda: app.departed)
                assert app.calls[0][1].departure == "flood"
                await until(lambda: server.connections == 0)
            async with Caller.to(server) as caller:
                caller.send(get("/2") + b"x" * 200_000)
                await until(lambda: server.connections == 0 or app.departed[1:])

    run(main(), factory)


@both_loops
def test_after_a_finished_response_nothing_departs(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app) as server:
            for way in ("half_close", "abort", "reset"):
                async with Caller.to(server) as caller:
                    caller.send(get("/"))
                    await caller.reply()
                    getattr(caller, way)()
                    await until(lambda: server.connections == 0)
            assert not app.departed
            responder = app.calls[0][1]
            await responder.flushed()
            responder.cut()
            assert responder.finished
            assert not responder.departed
            with pytest.raises(RuntimeError):
                responder.write(b"x")

    run(main(), factory)


@both_loops
def test_a_caller_that_leaves_while_it_sends_reaches_no_app(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app) as server:
            for data in (
                b"",
                b"GET / HT",
                post(b"hello")[:-2],
                get("/", "Transfer-Encoding: chunked") + b"5\r\nhel",
            ):
                for way in ("half_close", "abort", "reset"):
                    async with Caller.to(server) as caller:
                        caller.send(data)
                        await until(lambda: server.connections == 1)
                        await asyncio.sleep(0.002)
                        getattr(caller, way)()
                        await until(lambda: server.connections == 0)
                    assert server.budget.used == 0
            assert not app.calls
            assert not app.errors

    run(main(), factory)


@both_loops
@pytest.mark.parametrize(
    ("data", "field"),
    [
        (get("/", "Connection: close"), "close"),
        (get("/", version="1.0"), "close"),
        (get("/", "Connection: keep-alive", version="1.0"), "keep-alive"),
        (get("/"), None),
    ],
)
def test_keep_alive_as_each_version_says(factory, data, field):
    async def main():
        app = Recorder(echo)
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(data)
            reply = await caller.reply()
            assert reply.headers.get("connection") == field
            if field == "close":
                assert await caller.rest() == b""
            else:
                caller.send(data)
                assert (await caller.reply()).status == 200

    run(main(), factory)


@both_loops
def test_the_answer_to_a_bad_request_arrives_although_input_goes_on(factory):
    """The lingering close: FIN and discard, so that no RST overtakes the answer."""

    async def main():
        app = Recorder(echo)
        async with serving(app, linger_s=5.0) as server, Caller.to(server) as caller:
            caller.send(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
            for _ in range(50):
                caller.send(b"x" * 50_000)
                await asyncio.sleep(0)
            reply = await caller.reply()
            assert (reply.status, reply.body, reply.closes) == (400, b"invalid_request", True)
            assert await caller.rest() == b""
            caller.half_close()
            await until(lambda: server.connections == 0)
            assert not app.calls

    run(main(), factory)


@both_loops
def test_lingering_is_bounded(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(b"nonsense\r\n\r\n")
            assert (await caller.reply()).status == 400
            server.sweep(asyncio.get_running_loop().time() + 2.1)
            await until(lambda: server.connections == 0)

    run(main(), factory)


@both_loops
def test_an_answer_on_the_head_alone(factory):
    async def main():
        app = Recorder(echo)
        app.head = lambda request: (
            Answer(404, [(b"content-type", b"text/plain")], b"no", close=request.path == "/close")
            if request.path != "/"
            else BodyPlan(10)
        )
        async with serving(app) as server:
            async with Caller.to(server) as caller:
                caller.send(get("/none") + get("/none", method="HEAD") + get("/"))
                assert (await caller.reply()).body == b"no"
                reply = await caller.reply(head=True)
                assert reply.headers["content-length"] == "2"
                assert (await caller.reply()).body == b"/ "
                caller.send(get("/close"))
                assert (await caller.reply()).closes
                assert await caller.rest() == b""
            for data in (
                post(b"body", path="/none"),
                get("/none", "Transfer-Encoding: chunked", method="POST"),
            ):
                async with Caller.to(server) as caller:
                    caller.send(data)
                    reply = await caller.reply()
                    assert (reply.status, reply.closes) == (404, True)  # the body is unread
                    assert await caller.rest() == b""
            assert server.budget.used == 0

    run(main(), factory)


@both_loops
def test_an_app_that_raises_is_answered_for(factory):
    async def main():
        app = Recorder()
        async with serving(app) as server:

            def fail(*_):
                raise ValueError("a bug")

            app.head = fail
            async with Caller.to(server) as caller:
                caller.send(get("/"))
                assert (await caller.reply()).status == 500
            app.head = lambda _: BodyPlan(100)
            app.handler = fail
            async with Caller.to(server) as caller:
                caller.send(post(b"abc"))
                assert (await caller.reply()).status == 500
            assert app.departed[0].departure == "internal"
            assert server.budget.used == 0

            def late(_, responder):
                responder.start(200, [], length=None, first=b"x")
                raise ValueError("a bug")

            app.handler = late
            async with Caller.to(server) as caller:
                caller.send(get("/"))
                reply = await caller.reply()
                assert (reply.body, reply.whole) == (b"x", False)

            def done(request, responder):
                echo(request, responder)
                raise asyncio.CancelledError

            app.handler = done
            async with Caller.to(server) as caller:
                caller.send(get("/"))
                assert (await caller.reply()).status == 200

            def departs(_, responder):
                responder.listen(on_departure=fail)

            app.handler = departs
            async with Caller.to(server) as caller:
                caller.send(get("/"))
                await until(lambda: len(app.calls) == 4)
            app.on_protocol_error = fail  # type: ignore[method-assign]
            async with Caller.to(server) as caller:
                caller.send(b"nonsense\r\n\r\n")
                assert await caller.rest() == b""
            await until(lambda: server.connections == 0)

    run(main(), factory, reports=6)


@both_loops
def test_connections_are_bounded_in_all_and_per_peer(factory):
    async def main():
        cases: list[tuple[dict[str, Any], str, int]] = [
            ({"max_connections": 2}, "queue_full", 503),
            ({"per_peer": 2}, "rate_limit_exceeded", 429),
        ]
        for limits, code, status in cases:
            app = Recorder(echo)
            async with (
                serving(app, **limits) as server,
                Caller.to(server) as first,
                Caller.to(server) as second,
            ):
                await until(lambda: server.connections == 2)
                async with Caller.to(server) as third:
                    reply = await third.reply()
                    assert (reply.status, reply.closes) == (status, True)
                    assert await third.rest() == b""
                assert app.errors[0][0] == code
                assert server.turned_away == 1
                for caller in (first, second):
                    caller.send(get("/"))
                    assert (await caller.reply()).status == 200
                first.abort()
                await until(lambda: server.connections == 1)
                async with Caller.to(server) as third:
                    third.send(get("/"))
                    assert (await third.reply()).status == 200

    run(main(), factory)


@both_loops
def test_a_flood_of_connections_is_closed_without_a_word(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app, max_connections=1) as server:
            callers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
            await until(lambda: server.turned_away == 199)
            await until(lambda: server.connections <= 130)
            for caller in callers:
                caller.close()
            await until(lambda: server.connections == 0)
            assert len(app.errors) <= 128

    run(main(), factory)


@both_loops
def test_shutdown_in_its_steps(factory):
    async def main():
        app = Recorder()
        async with (
            serving(app) as server,
            Caller.to(server) as fresh,
            Caller.to(server) as idle,
            Caller.to(server) as busy,
            Caller.to(server) as left,
        ):
            idle.send(get("/idle"))
            await until(lambda: len(app.calls) == 1)
            echo(*app.calls[0])
            await idle.reply()
            for number, caller in ((2, busy), (3, left)):
                caller.send(get("/busy"))
                await until(lambda number=number: len(app.calls) == number)
            server.begin_shutdown()
            async with Caller.to(server) as late:  # the listener stays open
                late.send(get("/late"))
                await until(lambda: len(app.calls) == 4)
                echo(*app.calls[3])
                assert (await late.reply()).closes
            port = server.port
            server.stop_accepting()
            server.stop_accepting()
            assert await idle.rest() == b""
            assert await fresh.rest() == b""
            await turns()
            with pytest.raises(OSError):  # noqa: PT011 - refused
                await asyncio.open_connection("127.0.0.1", port)
            closing = asyncio.create_task(server.close(0.3))
            await turns(2)
            echo(*app.calls[1])
            reply = await busy.reply()
            assert (reply.status, reply.closes) == (200, True)
            await closing
            assert server.connections == 0
            assert [r.departure for r in app.departed] == ["shutdown"]
            assert app.departed[0] is app.calls[2][1]

    run(main(), factory)


@both_loops
def test_listening(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app) as server:
            sock = server.sockets[0]
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            other = HttpServer(app, ServerLimits(), ByteBudget(1))
            with pytest.raises(OSError, match=r"in use|Errno 98"):
                await other.start("127.0.0.1", server.port)
            await other.close(0.0)
        own = socket.socket()
        own.bind(("127.0.0.1", 0))
        server = HttpServer(app, ServerLimits(), ByteBudget(1 << 20))
        await server.start(sockets=[own])
        async with Caller.to(server) as caller:
            caller.send(get("/"))
            assert (await caller.reply()).status == 200
        await server.close(1.0)

    run(main(), factory)
