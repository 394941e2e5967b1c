"""Slow, idle, oversized: bounded and cut off, by one sweep and without harm to others (contract G2)."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.runtime.http1.support import (
    Caller,
    Clock,
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
def test_a_head_has_a_time(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app, header_timeout_s=10.0) as server:
            clock = Clock(server)
            async with Caller.to(server) as silent, Caller.to(server) as slow:
                slow.send(b"GET / HT")
                await until(lambda: server.connections == 2)
                await turns()
                clock.advance(9.9)
                await turns()
                assert server.connections == 2
                slow.send(b"TP/1.1\r\n")  # a byte now and then buys no time
                await turns()
                clock.advance(0.2)
                reply = await slow.reply()
                assert (reply.status, reply.closes) == (408, True)
                assert await silent.rest() == b""
                assert app.errors == [("request_timeout", "The request head did not arrive in time.")]

    run(main(), factory)


@both_loops
def test_keep_alive_and_the_next_head_have_their_times(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app, header_timeout_s=10.0, keepalive_s=100.0) as server:
            clock = Clock(server)
            async with Caller.to(server) as caller:
                caller.send(get("/"))
                await caller.reply()
                clock.advance(99.0)
                caller.send(b"GE")
                await turns()
                clock.advance(9.0)
                caller.send(get("/")[2:])
                assert (await caller.reply()).status == 200
                clock.advance(99.0)
                await turns()
                assert server.connections == 1
                clock.advance(2.0)
                assert await caller.rest() == b""
            async with Caller.to(server) as caller:
                caller.send(get("/") + b"GET /")
                await caller.reply()
                await turns()
                clock.advance(10.1)
                assert (await caller.reply()).status == 408

    run(main(), factory)


@both_loops
@pytest.mark.parametrize("head", [post(b"x" * 10)[:-5], get("/", "Transfer-Encoding: chunked") + b"5\r\nhel"])
def test_a_body_has_a_time_in_all(factory, head):
    async def main():
        app = Recorder(echo)
        async with (
            serving(app, header_timeout_s=99.0, body_timeout_s=10.0) as server,
            Caller.to(server) as caller,
        ):
            clock = Clock(server)
            async with Caller.to(server) as late:
                late.send(head)
                await until(lambda: server.budget.used)
                clock.advance(9.9)
                late.send(b"x")
                await turns()
                clock.advance(0.2)
                reply = await late.reply()
                assert (reply.status, reply.closes) == (408, True)
                assert server.budget.used == 0
            caller.send(get("/"))  # nobody else is harmed
            assert (await caller.reply()).status == 200
            assert len(app.calls) == 1

    run(main(), factory)


@both_loops
def test_a_running_request_has_no_time_here(factory):
    async def main():
        app = Recorder()
        async with serving(app) as server:
            clock = Clock(server)
            async with Caller.to(server) as caller:
                caller.send(get("/"))
                await until(lambda: app.calls)
                clock.advance(100_000.0)
                echo(*app.calls[0])
                assert (await caller.reply()).status == 200

    run(main(), factory)


@both_loops
@pytest.mark.parametrize("size", [1, 100, 3000, 70_000, 1_000_000])
def test_a_head_without_end_is_refused_and_not_kept(factory, size):
    async def main():
        app = Recorder(echo)
        async with serving(app, header_bytes=4096, linger_s=5.0) as server, Caller.to(server) as caller:
            conn = None
            caller.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
            for _ in range(5000 // size + 1):
                caller.send(b"x" * size)
                await asyncio.sleep(0)
                if size > 1 and server._connections:
                    conn = next(iter(server._connections))
                    assert conn._head is None or len(conn._head) <= 4096
            reply = await caller.reply()
            assert (reply.status, reply.closes) == (431, True)
            assert await caller.rest() == b""
            assert conn is None or conn._head is None

    run(main(), factory)


@both_loops
def test_the_limit_of_a_head_is_exact(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app, header_bytes=200) as server:
            plain = len(get("/", "X: "))
            for extra, status in ((200 - plain, 200), (201 - plain, 431)):
                data = get("/", "X: " + "y" * extra)
                async with Caller.to(server) as caller:
                    caller.send(data)
                    assert (await caller.reply()).status == status
                async with Caller.to(server) as caller:
                    caller.send(data[:150])
                    await turns()
                    caller.send(data[150:])
                    assert (await caller.reply()).status == status

    run(main(), factory)


@both_loops
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\n\n",
        b"GET / HTTP/1.1\r\n\nHost: a",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on a plain port
        b"\r\n\r\n\r\n",
        b"\n",
        b"get / HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nraw",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\nraw",
    ],
)
def test_what_can_not_become_a_request_is_answered_at_once(factory, data):
    async def main():
        for size in (len(data), 1):
            app = Recorder(echo)
            async with serving(app) as server, Caller.to(server) as caller:
                for n in range(0, len(data), size):
                    caller.send(data[n : n + size])
                    await asyncio.sleep(0)
                reply = await caller.reply()
                assert (reply.status, reply.closes) == (400, True)
                assert await caller.rest() == b""
                assert app.errors[0][0] == "invalid_request"
                assert not app.calls

    run(main(), factory)


@both_loops
def test_an_empty_line_before_a_request_is_no_request(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app, header_timeout_s=10.0, keepalive_s=100.0) as server:
            clock = Clock(server)
            async with Caller.to(server) as caller:
                caller.send(post(b"abc") + b"\r\n")  # as some old clients end a body
                assert (await caller.reply()).status == 200
                await turns()
                clock.advance(50.0)
                caller.send(b"GET")
                await turns()
                clock.advance(9.0)
                caller.send(get("/")[3:] + b"\r")
                assert (await caller.reply()).status == 200
                caller.send(b"\n")
                await turns()
                clock.advance(99.0)
                assert await caller.rest() == b""
                assert not app.errors

    run(main(), factory)


@both_loops
def test_many_half_open_connections_harm_nobody(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app, header_timeout_s=10.0, body_timeout_s=10.0) as server:
            clock = Clock(server)
            halves = []
            for number in range(200):
                sock = socket.create_connection(("127.0.0.1", server.port))
                sock.send((b"", b"GET / HTTP/1.1\r\nX: ", post(b"x" * 100)[:-1], b"\r")[number % 4])
                halves.append(sock)
            await until(lambda: server.connections == 200 and server.budget.used == 50 * 99)
            async with Caller.to(server) as caller:
                caller.send(get("/"))
                assert (await caller.reply()).status == 200
            clock.advance(10.1)
            await until(lambda: server.budget.used == 0)
            clock.advance(2.1)
            await until(lambda: server.connections == 0)
            for sock in halves:
                sock.close()

    run(main(), factory)
