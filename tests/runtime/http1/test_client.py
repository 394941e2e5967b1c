"""Responses: delimited, bounded, lost; and sinks that raise."""

from __future__ import annotations

import asyncio

import pytest

from tests.runtime.http1.support import (
    OK,
    REQUEST,
    Sink,
    ask,
    backend,
    both_loops,
    pooled,
    reset,
    run,
    turns,
    until,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A:  b \r\n\r\n"
WHOLE = CHUNKED + b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nx-trailer: 1\r\n\r\n"


@both_loops
def test_a_chunked_response_at_every_split(factory):
    async def main():
        async def handle(reader, writer):
            for cut in range(1, len(WHOLE) + 1):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(WHOLE[:cut])
                await asyncio.sleep(0.0005)
                writer.write(WHOLE[cut:])

        async with backend(handle) as (url, writers), pooled(url) as pool:
            for cut in range(1, len(WHOLE) + 1):
                sink = await ask(pool)
                assert (sink.status, sink.body, sink.ended) == (200, b"hello world", True), cut
                assert sink.headers == [(b"transfer-encoding", b"chunked"), (b"x-a", b"b")]
                assert sink.calls[0] == "head"
                assert sink.calls[-1] == "end"
                assert "read" not in sink.calls[sink.calls.index("end") :]
            assert len(writers) == pool.opened == 1  # keep-alive is decided inside on_message_complete
            assert (pool.idle, pool.in_use) == (1, 0)

    run(main(), factory)


@both_loops
def test_a_read_is_flushed_once(factory):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED + b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n")
            await until(lambda: sink.body == b"abc")
            writer.write(b"1\r\nd\r\n")
            await until(lambda: sink.body == b"abcd")
            writer.write(b"1\r\ne\r\n0\r\n\r\n")

        sink = Sink()
        async with backend(handle) as (url, _), pooled(url) as pool:
            await ask(pool, sink)
            assert sink.calls == ["head", "body", "body", "body", "read", "body", "read", "body", "end"]

    run(main(), factory)


GOOD = {
    "length": (OK, b"ok", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", b"", True),
    "empty": (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"", True),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok", b"ok", True),
    "close": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", b"ok", False),
    "1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", b"ok", False),
    "1.0 kept": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok", b"ok", True),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,
        b"ok",
        True,
    ),
    "interim with a length": (
        b"HTTP/1.1 102 P\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\nok",
        b"ok",
        False,
    ),
    "garbage behind": (OK + b"HTTP/1.1 200 OK\r\n", b"ok", False),
    "a byte behind": (OK + b"x", b"ok", False),
    "garbage behind close": (
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok!",
        b"ok",
        False,
    ),
    "another response behind": (OK + OK, b"ok", False),
}


@both_loops
@pytest.mark.parametrize(("answer", "body", "kept"), GOOD.values(), ids=GOOD.keys())
def test_complete_responses(factory, answer, body, kept):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if answer.startswith(b"HTTP/1.1 102"):  # the only one that is delimited by the close
                await asyncio.sleep(0.002)
                writer.close()
            else:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(OK)

        async with backend(handle) as (url, _), pooled(url) as pool:
            sink = await ask(pool)
            assert (sink.ended, sink.body) == (True, body)
            assert pool.idle == kept
            if kept:
                assert (await ask(pool)).body == b"ok"
                assert pool.opened == 1
            await until(lambda: pool.in_use == 0)

    run(main(), factory)


@both_loops
@pytest.mark.parametrize("whole", [True, False])
def test_a_body_that_ends_with_the_connection(factory, whole):
    """A FIN is its end, a RST is a loss (contract C3)."""

    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nsome")
            await until(lambda: sink.body == b"some")
            writer.write(b"thing")
            await until(lambda: sink.body == b"something")
            if whole:
                writer.close()
            else:
                reset(writer)

        sink = Sink()
        async with backend(handle) as (url, _), pooled(url) as pool:
            await ask(pool, sink)
            assert sink.ended is whole
            if not whole:
                assert (sink.lost.code, sink.lost.clean_eof, sink.lost.peer_closed) == (
                    "upstream_reset",
                    False,
                    True,
                )
            await until(lambda: pool.in_use == 0)

    run(main(), factory)


@both_loops
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
        CHUNKED,
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\n",
    ],
)
def test_a_response_that_does_not_end(factory, answer, clean):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await until(lambda: conn.bytes_in == len(answer))
            if clean:
                writer.close()
            else:
                reset(writer)

        sink = Sink()
        async with backend(handle) as (url, _), pooled(url) as pool:
            conn = await pool.acquire()
            conn.request(REQUEST, sink)
            await until(lambda: sink.over)
            lost = sink.lost
            assert lost is not None
            assert (lost.code, lost.clean_eof, lost.peer_closed) == ("upstream_reset", clean, True)
            assert (lost.seen_bytes, lost.unread, lost.cause) == (len(answer), False, None)
            assert str(lost)
            assert sink.calls[-1] == "lost"
            assert conn.closed
            assert conn.peer_closed
            await until(lambda: pool.in_use == 0)
            conn.abort()
            conn.half_close(lambda: sink.calls.append("closed"), on_end=lambda: sink.calls.append("ended"))
            assert sink.calls[-1] == "closed"  # it has, already

    run(main(), factory)


BAD = {
    "not HTTP": b"SSH-2.0-OpenSSH\r\n",
    "garbage": b"\x00\x01\x02\x03",
    "HTTP/2": b"HTTP/2.0 200 OK\r\ncontent-length: 0\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\ncontent-length: 0\r\n\r\n",
    "switching": b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nraw",
    "switching without fields": b"HTTP/1.1 101 Switching\r\n\r\nraw",
    "status": b"HTTP/1.1 099 X\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    "length and chunks": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    "other coding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc",
    "broken length": b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
    "broken chunk": CHUNKED + b"zz\r\n",
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    "endless head": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    "large head": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nx: " + b"y" * 66_000 + b"\r\n\r\nz",
    "endless interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
    "endless extension": CHUNKED + b"1;" + b"x" * 200_000,
    "endless trailer": CHUNKED + b"0\r\nx: " + b"x" * 200_000,
    "large trailers": CHUNKED + b"0\r\n" + b"x: %b\r\n" % (b"y" * 700) * 100 + b"\r\n",
}


@both_loops
@pytest.mark.parametrize("answer", BAD.values(), ids=BAD.keys())
def test_what_is_no_response(factory, answer):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            for n in range(0, len(answer), 16384):
                writer.write(answer[n : n + 16384])
                await asyncio.sleep(0.0002)
            assert await reader.read() == b""  # told to stop at once
            writer.close()

        async with backend(handle) as (url, _), pooled(url) as pool:
            sink = Sink()
            conn = await pool.acquire()
            conn.request(REQUEST, sink)
            await until(lambda: sink.over)
            assert (sink.lost.code, sink.lost.peer_closed) == ("upstream_protocol", False)
            assert pool.idle == 0
            # The slot's owner can still learn that the backend has let go (contract B5).
            seen: list[str] = []
            conn.half_close(lambda: seen.append("closed"), on_end=lambda: seen.append("ended"))
            await until(lambda: seen)
            assert seen == ["closed"]
            await until(lambda: pool.in_use == 0)
            assert sink.calls.count("lost") == 1

    run(main(), factory)


@both_loops
@pytest.mark.parametrize("error", [ValueError("a bug"), asyncio.CancelledError()], ids=["error", "cancelled"])
@pytest.mark.parametrize("where", ["head", "body", "read", "end", "lost"])
def test_a_sink_that_raises_ends_its_response_and_nothing_else(factory, where, error):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED + b"1\r\na\r\n")
            if where == "lost":
                writer.close()
                return
            await asyncio.sleep(0.002)
            writer.write(b"1\r\nb\r\n0\r\n\r\n")
            await reader.read()
            writer.close()

        async with backend(handle) as (url, _), pooled(url) as pool:
            sink = await ask(pool, Sink(**{where: error}))
            await until(lambda: sink.lost is not None)
            await turns()
            assert sink.calls.count("lost") == 1
            if where != "lost":
                assert sink.lost.code == "internal"
                assert sink.lost.cause is error
                assert sink.calls[-2] == where
            if where != "end":
                await until(lambda: pool.in_use == 0 and pool.idle == 0)

    run(main(), factory, reports=1 if where == "lost" else 0)


@both_loops
def test_pause_and_resume(factory):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n")
            for _ in range(500):
                writer.write(b"x" * 100_000)
                await writer.drain()

        async with backend(handle) as (url, _), pooled(url) as pool:
            sink = Sink()
            size = 0

            def count(chunk):
                nonlocal size
                size += len(chunk)

            sink.on_body = count  # type: ignore[method-assign]
            conn = await pool.acquire()
            sink.on["head"] = conn.pause
            conn.request(REQUEST, sink)
            await until(lambda: sink.status)
            await turns()
            held = size
            await asyncio.sleep(0.02)
            assert size == held < 1_000_000
            conn.resume()
            conn.resume()
            await until(lambda: size > held)
            conn.pause()
            await asyncio.sleep(0.005)
            conn.resume()
            await until(lambda: sink.ended)
            assert size == 50_000_000
            assert pool.idle == 1
            conn.pause()  # not its owner any more
            assert (await asyncio.wait_for(pool.acquire(), 5)).reused

    run(main(), factory)


@both_loops
def test_a_request_in_pieces_and_an_early_answer(factory):
    async def main():
        async def handle(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"early" in head:
                writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
                await asyncio.sleep(3600)
            await reader.readexactly(6)
            writer.write(OK)
            await asyncio.sleep(3600)

        async with backend(handle) as (url, _), pooled(url) as pool:
            sink = Sink()
            conn = await pool.acquire()
            conn.request([b"POST / HTTP/1.1\r\n", b"\r\n", b"abc", b"def"], sink)
            with pytest.raises(RuntimeError):
                conn.request(REQUEST, Sink())
            await until(lambda: sink.ended)
            assert pool.idle == 1
            with pytest.raises(RuntimeError):
                conn.request(REQUEST, Sink())
            await pool.close()
        async with backend(handle) as (url, _), pooled(url) as pool:
            sink = Sink()
            conn = await pool.acquire()
            conn.request([b"POST /early HTTP/1.1\r\n\r\n", b"x" * 30_000_000], sink)
            await until(lambda: sink.ended)
            assert sink.status == 413
            assert pool.idle == 0  # most of the request is unsent: nothing else may follow on this connection

    run(main(), factory)
