"""Ends made by us, and what is seen of the peer after them (contract B4, B5)."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.runtime.http1.support import (
    OK,
    REQUEST,
    Sink,
    ask,
    backend,
    both_loops,
    pooled,
    replies,
    run,
    turns,
    until,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@both_loops
def test_half_close_sees_the_peer_close(factory):
    """Contract B5: the peer's own close is the evidence; ours is not."""

    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED + b"1\r\na\r\n")
            reading = asyncio.create_task(reader.read())
            for _ in range(5):
                writer.write(b"1\r\nx\r\n")
                await asyncio.sleep(0)
            await reading
            await gate.wait()
            writer.close()

        gate = asyncio.Event()
        async with backend(handle) as (url, _), pooled(url) as pool:
            sink = Sink()
            seen: list[str] = []
            conn = await pool.acquire()
            conn.request(REQUEST, sink)
            await until(lambda: sink.body)
            conn.pause()
            conn.pause()
            conn.add_close_callback(lambda: seen.append("callback"))
            body = sink.body
            conn.half_close(lambda: seen.append("closed"), on_end=lambda: seen.append("ended"))
            conn.half_close()
            await turns()
            early = conn.peer_closed
            assert (seen, early) == ([], False)
            gate.set()
            await until(lambda: seen)
            assert seen == ["callback", "closed"]
            assert conn.peer_closed
            assert sink.body == body  # the sink hears nothing after it
            assert not sink.over
            await until(lambda: pool.in_use == 0)

    run(main(), factory)


@both_loops
def test_half_close_sees_the_message_end(factory):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED + b"1\r\na\r\n")
            await reader.read()
            writer.write(b"1\r\nb\r\n0\r\n\r\n")

        async with backend(handle) as (url, _), pooled(url) as pool:
            sink = Sink()
            seen: list[str] = []
            conn = await pool.acquire()
            conn.request(REQUEST, sink)
            await until(lambda: sink.body)
            conn.half_close(lambda: seen.append("closed"), on_end=lambda: seen.append("ended"))
            conn.half_close()  # once more changes nothing
            await until(lambda: seen)
            await until(lambda: pool.in_use == 0)
            assert seen == ["ended"]
            assert pool.idle == 0

    run(main(), factory)


@both_loops
def test_an_abort_of_ours_is_no_evidence(factory):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED + b"1\r\na\r\n")
            await asyncio.sleep(3600)

        async with backend(handle) as (url, _), pooled(url) as pool:
            for half in (False, True):
                sink = Sink()
                seen: list[str] = []
                conn = await pool.acquire()
                conn.request(REQUEST, sink)
                await until(lambda sink=sink: sink.body)
                conn.add_close_callback(partial(seen.append, "callback"))
                if half:
                    conn.half_close(partial(seen.append, "closed"), partial(seen.append, "ended"))
                    await turns()
                conn.abort()
                conn.abort()
                conn.close()
                await until(lambda: pool.in_use == 0)
                await turns()
                assert seen == []
                assert not conn.peer_closed
                assert not sink.over

    run(main(), factory)


@both_loops
def test_an_end_of_ours_that_nobody_watches_is_bounded(factory):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(CHUNKED + b"1\r\na\r\n")
            await asyncio.sleep(3600)

        async with backend(handle) as (url, _), pooled(url) as pool:
            loop = asyncio.get_running_loop()
            for way in ("raise", "half_close"):
                sink = Sink(**({"body": ValueError("a bug")} if way == "raise" else {}))
                conn = await pool.acquire()
                conn.request(REQUEST, sink)
                await until(lambda sink=sink: sink.body == b"a")
                if way == "half_close":
                    conn.half_close()
                await turns()
                pool.sweep(loop.time() + 9.0)
                await turns()
                assert pool.in_use == 1
                pool.sweep(loop.time() + 10.1)
                await until(lambda: pool.in_use == 0)

    run(main(), factory)


@both_loops
def test_the_sink_may_end_its_response_in_every_call(factory):
    async def main():
        async def handle(reader, writer):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(CHUNKED + b"1\r\na\r\n1\r\nb\r\n")
                await asyncio.sleep(0.002)
                writer.write(b"0\r\n\r\n")

        async with backend(handle) as (url, _), pooled(url) as pool:
            for where in ("head", "body", "read", "end"):
                for how in ("abort", "half_close"):
                    sink = Sink()
                    conn = await pool.acquire()
                    sink.on[where] = getattr(conn, how)
                    conn.request(REQUEST, sink)
                    await until(lambda sink=sink, where=where: where in sink.calls)
                    await turns()
                    assert sink.calls[-1] == where
                    assert sink.calls.count(where) == 1

    run(main(), factory)


@both_loops
def test_a_request_that_was_never_sent_leaves_nothing_to_wait_for(factory):
    """Ended before its sink could be told that the connection is dead: the peer has not heard of it."""

    async def main():
        async with backend(replies(OK)) as (url, writers), pooled(url) as pool:
            await ask(pool)
            conn = await pool.acquire()
            writers[0].close()
            await until(lambda: conn.closed)
            sink = Sink()
            conn.request(REQUEST, sink)
            seen: list[str] = []
            conn.half_close(partial(seen.append, "closed"), partial(seen.append, "ended"))
            assert seen == ["closed"]
            await turns()
            assert seen == ["closed"]
            assert not sink.over
            assert pool.in_use == 0

    run(main(), factory)


@both_loops
def test_close_callbacks_end_with_the_use(factory):
    async def main():
        async with backend(replies(OK)) as (url, writers), pooled(url) as pool:
            seen: list[str] = []
            sink = Sink()
            conn = await pool.acquire()
            conn.add_close_callback(partial(seen.append, "first"))
            conn.request(REQUEST, sink)
            await until(lambda: sink.ended)
            again = await pool.acquire()
            assert again.reused
            again.add_close_callback(partial(seen.append, "released"))
            again.release()
            last = await pool.acquire()
            last.add_close_callback(partial(seen.append, "last"))
            writers[0].close()
            await until(lambda: seen)
            assert seen == ["last"]

    run(main(), factory)


@both_loops
def test_a_body_that_ends_with_the_connection_gives_none_back(factory):
    """Also after a response that could be kept: what was said of that one is not valid for this one."""

    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\nall")
            await until(lambda: sink.body == b"all")
            writer.close()

        sink = Sink()
        async with backend(handle) as (url, _), pooled(url) as pool:
            await ask(pool)
            idle: list[int] = []
            sink.on["end"] = lambda: idle.append(pool.idle)
            await ask(pool, sink)
            assert (idle, sink.body, pool.opened) == ([0], b"all", 1)
            await until(lambda: pool.in_use == 0)

    run(main(), factory)
