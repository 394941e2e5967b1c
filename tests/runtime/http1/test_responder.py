"""Framing of responses, one write each, back-pressure, stalls, cuts."""

from __future__ import annotations

import asyncio
import socket

import pytest

from inferencemesh.runtime.http1.heads import response_head
from tests.runtime.http1.support import Caller, Clock, Recorder, both_loops, get, run, serving, turns, until

TEXT = [(b"content-type", b"text/event-stream")]
SMALL_WINDOW = {"limit": 2**12}


def test_heads_cannot_be_split():
    head = response_head(
        200, [(b"x", b"1"), (b"Content-Length", b"9"), (b"date", b"never"), (b"Server", b"x")], b""
    )
    assert head.startswith(b"HTTP/1.1 200 OK\r\nx: 1\r\ndate: ")
    assert head.endswith(b"\r\nserver: inferencemesh\r\n\r\n")
    assert b"Content-Length" not in head
    assert response_head(599, [], b"").startswith(b"HTTP/1.1 599 \r\n")
    for value in (b"a\r\nb: c", b"a\nb", b"a\rb", b"a\0b"):
        with pytest.raises(ValueError, match="CR, LF or NUL"):
            response_head(200, [(b"x", value)], b"")
        with pytest.raises(ValueError, match="CR, LF or NUL"):
            response_head(200, [(value, b"x")], b"")


@both_loops
def test_every_step_is_one_write(factory):
    async def main():
        app = Recorder()
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(get("/"))
            await until(lambda: app.calls)
            responder = app.calls[0][1]
            writes: list[bytes] = []
            conn_type = type(app.calls[0][0].conn)
            original = conn_type.write

            def noting(self, data):
                writes.append(data)
                original(self, data)

            conn_type.write = noting  # type: ignore[method-assign]
            try:
                responder.start(200, TEXT, length=None, first=b"one")
                responder.write(b"")
                responder.write(b"two!")
                responder.finish(b"three")
            finally:
                conn_type.write = original  # type: ignore[method-assign]
            assert writes[0].startswith(b"HTTP/1.1 200 OK\r\n")
            assert writes[0].endswith(b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n")
            assert writes[1:] == [b"4\r\ntwo!\r\n", b"5\r\nthree\r\n0\r\n\r\n"]
            reply = await caller.reply()
            assert (reply.body, reply.whole) == (b"onetwo!three", True)
            assert responder.bytes_out == 12
            assert (responder.started, responder.finished) == (True, True)

    run(main(), factory)


@both_loops
def test_a_whole_stream_at_once(factory):
    async def main():
        app = Recorder()

        def answer(request, responder):
            length = {"/chunks": None, "/length": 3}[request.path]
            responder.start(200, TEXT, length=length, first=b"abc", whole=True)

        app.handler = answer
        async with serving(app) as server:
            for path in ("/chunks", "/length"):
                async with Caller.to(server) as caller:
                    caller.send(get(path))
                    reply = await caller.reply()
                    assert (reply.body, reply.whole) == (b"abc", True)
                    responder = app.calls[-1][1]
                    assert (responder.started, responder.finished, responder.bytes_out) == (True, True, 3)

    run(main(), factory)


@both_loops
def test_each_way_to_delimit(factory):
    async def main():
        app = Recorder()

        def answer(request, responder):
            if request.path == "/length":
                responder.start(200, TEXT, length=6, first=b"abc")
                responder.write(b"de")
                with pytest.raises(ValueError, match="announced"):
                    responder.write(b"too long")
                responder.finish(b"f")
            elif request.path == "/short":
                responder.start(200, TEXT, length=6, first=b"abc")
                responder.finish()
            elif request.path == "/empty":
                responder.send(204, [], b"")
            elif request.path == "/head":
                responder.start(200, TEXT, length=None, first=b"never")
                responder.write(b"seen")
                responder.finish(b"!")
            else:
                responder.start(200, TEXT, length=None)
                responder.write(b"abc")
                responder.finish()

        app.handler = answer
        async with serving(app) as server:
            async with Caller.to(server) as caller:
                caller.send(get("/length") + get("/empty") + get("/head", method="HEAD") + get("/chunks"))
                reply = await caller.reply()
                assert (reply.body, reply.headers["content-length"]) == (b"abcdef", "6")
                reply = await caller.reply()
                assert reply.status == 204
                assert not {"content-length", "transfer-encoding"} & reply.headers.keys()
                assert (await caller.reply(head=True)).status == 200
                reply = await caller.reply()
                assert (reply.body, reply.whole) == (b"abc", True)
                assert app.calls[2][1].bytes_out == 0
                caller.send(get("/short"))
                with pytest.raises(asyncio.IncompleteReadError):
                    await caller.reply()
            async with Caller.to(server) as caller:
                caller.send(get("/", version="1.0") + b"")
                reply = await caller.reply()
                assert (reply.body, reply.closes) == (b"abc", True)
                assert "transfer-encoding" not in reply.headers

    run(main(), factory)


@both_loops
def test_a_cut_does_not_look_like_an_end(factory):
    async def main():
        app = Recorder()
        async with serving(app) as server:
            async with Caller.to(server) as caller:
                caller.send(get("/"))
                await until(lambda: app.calls)
                responder = app.calls[0][1]
                responder.start(200, TEXT, length=None, first=b"abc")
                responder.write(b"the error event")
                responder.cut()
                responder.cut()
                responder.write(b"more")
                reply = await caller.reply()
                assert (reply.body, reply.whole) == (b"abcthe error event", False)
                with pytest.raises(ConnectionError):
                    await responder.flushed()
            async with Caller.to(server) as caller:  # a close is the end there, so it must be a reset
                caller.send(get("/", version="1.0"))
                await until(lambda: len(app.calls) == 2)
                responder = app.calls[1][1]
                responder.start(200, TEXT, length=None, first=b"abc")
                responder.cut()
                with pytest.raises(ConnectionError):
                    await caller.reply()
            assert not app.departed

    run(main(), factory)


@both_loops
def test_misuse_is_an_error_before_anything_is_written(factory):
    async def main():
        app = Recorder()
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(get("/"))
            await until(lambda: app.calls)
            responder = app.calls[0][1]
            for call in (lambda: responder.write(b"x"), responder.finish):
                with pytest.raises(RuntimeError):
                    call()
            for call in (
                lambda: responder.send(200, [(b"x", b"a\r\nb: c")], b""),
                lambda: responder.start(200, [(b"x", b"a\n")], length=None),
            ):
                with pytest.raises(ValueError, match="CR, LF"):
                    call()
            assert not responder.started
            responder.start(200, [], length=None)
            for call in (lambda: responder.start(200, [], length=None), lambda: responder.send(200, [], b"")):
                with pytest.raises(RuntimeError):
                    call()
            responder.finish(b"ok")
            for call in (
                lambda: responder.write(b"x"),
                responder.finish,
                lambda: responder.send(200, [], b""),
            ):
                with pytest.raises(RuntimeError):
                    call()
            assert (await caller.reply()).body == b"ok"

    run(main(), factory)


def slow(server):
    """A caller whose kernel takes little, and that does not read unless asked to."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", server.port))
    sock.setblocking(False)
    return sock


async def fill(responder):
    """Write until the app is asked to pause."""
    for _ in range(4000):
        if responder.paused:
            return
        responder.write(b"x" * 10_000)
        await asyncio.sleep(0)
    raise AssertionError("never paused")


async def take(sock, n):
    """Read `n` bytes, or to the end."""
    got = 0
    loop = asyncio.get_running_loop()
    while got < n:
        data = await loop.sock_recv(sock, min(65536, n - got))
        if not data:
            break
        got += len(data)
    return got


@both_loops
def test_back_pressure(factory):
    async def main():
        app = Recorder()
        async with serving(app) as server:
            sock = slow(server)
            sock.send(get("/"))
            await until(lambda: app.calls)
            responder = app.calls[0][1]
            responder.start(200, TEXT, length=None, first=b"x")
            await responder.flushed()
            assert app.flow == []
            await fill(responder)
            assert app.flow == ["pause"]
            held = responder.unsent_bytes()
            assert 65536 < held < 65536 + 20_000
            responder.write(b"y" * 1000)
            assert responder.unsent_bytes() > held
            flushing = asyncio.create_task(responder.flushed())
            await turns()
            assert not flushing.done()
            await take(sock, responder.bytes_out - held)
            reading = asyncio.create_task(take(sock, 1 << 30))
            await flushing
            assert app.flow == ["pause", "resume"]
            assert responder.unsent_bytes() == 0
            assert not responder.paused
            responder.finish()
            await turns()
            server.sweep(asyncio.get_running_loop().time() + 1000)  # keep-alive
            await reading
            sock.close()

    run(main(), factory)


@both_loops
@pytest.mark.parametrize("finished", [False, True])
def test_a_reader_that_stops_is_cut_off_and_one_that_reads_on_is_not(factory, finished):
    async def main():
        app = Recorder()
        async with serving(app, send_timeout_s=10.0) as server:
            clock = Clock(server)
            sock = slow(server)
            sock.send(get("/"))
            await until(lambda: app.calls)
            responder = app.calls[0][1]
            responder.start(200, TEXT, length=None)
            await fill(responder)
            responder.write(b"y" * 8_000_000)
            if finished:
                responder.finish()
            for _ in range(20):  # 50 s, with progress in every step
                left = responder.unsent_bytes()
                while responder.unsent_bytes() == left:
                    await take(sock, 50_000)
                    await asyncio.sleep(0)
                if not finished:
                    responder.write(b"z" * 300_000)  # grows by more than was taken: not a stall all the same
                clock.advance(2.5)
                assert not responder.departed
            assert responder.unsent_bytes() > 1_000_000
            for _ in range(4):
                clock.advance(2.4)
            assert not responder.departed
            clock.advance(2.5)
            clock.advance(2.5)
            assert app.departed == [responder]
            assert responder.departure == "send_timeout"
            await until(lambda: server.connections == 0)
            sock.close()

    run(main(), factory)


@both_loops
def test_a_finished_response_departs_only_while_bytes_are_left(factory):
    """Contract B1: the response is in the books until the caller has taken it."""

    async def main():
        app = Recorder()
        async with serving(app) as server:
            sock = slow(server)
            sock.send(get("/") + get("/behind"))
            await until(lambda: app.calls)
            responder = app.calls[0][1]
            responder.send(200, [], b"x" * 8_000_000)
            assert responder.finished
            assert responder.unsent_bytes() > 0
            await turns()
            assert len(app.calls) == 1  # the next is not begun before the first is taken
            waiting = asyncio.create_task(responder.flushed())
            await turns(2)
            sock.close()
            await until(lambda: app.departed)
            assert app.departed == [responder]
            with pytest.raises(ConnectionError):
                await waiting
            await until(lambda: server.connections == 0)

    run(main(), factory)


@both_loops
def test_a_large_response_is_taken_whole(factory):
    async def main():
        app = Recorder()
        body = bytes(range(256)) * 40_000
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(get("/a") + get("/b"))
            await until(lambda: app.calls)
            app.calls[0][1].send(200, [], body)
            assert (await caller.reply()).body == body
            await until(lambda: len(app.calls) == 2)
            app.calls[1][1].start(200, [], length=None)
            app.calls[1][1].write(body)
            app.calls[1][1].finish(body)
            assert (await caller.reply()).body == body + body
            await app.calls[1][1].flushed()
            assert not app.departed

    run(main(), factory)
