"""Which connections are reused, which are not, what is counted, and what can be replayed."""

from __future__ import annotations

import asyncio
import socket

import pytest

from inferencemesh.runtime.http1 import ConnectError, ConnectionPool
from tests.runtime.http1.support import (
    OK,
    REQUEST,
    Recorder,
    Sink,
    ask,
    backend,
    both_loops,
    echo,
    pooled,
    replies,
    run,
    serving,
    turns,
    until,
)


@both_loops
def test_one_connection_serves_many_requests_on_both_sides(factory):
    """The trap: `should_keep_alive()` asked after `feed_data` says no, and each request opens a connection."""

    async def main():
        app = Recorder(echo)
        async with serving(app) as server, pooled(f"http://127.0.0.1:{server.port}") as pool:
            for number in range(100):
                sink = await ask(pool, data=b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number)
                assert sink.body == b"/%d " % number
            assert (pool.opened, pool.idle, pool.in_use, server.connections) == (1, 1, 0, 1)

    run(main(), factory)


@both_loops
def test_the_last_used_is_used_first_and_the_old_are_closed(factory):
    async def main():
        async with backend(replies(OK)) as (url, writers), pooled(url, idle_s=4.0, max_idle=3) as pool:
            conns = [await pool.acquire() for _ in range(5)]
            assert (pool.opened, pool.idle, pool.in_use) == (5, 0, 5)
            sinks = [Sink() for _ in conns]
            for conn, sink in zip(conns, sinks, strict=True):
                conn.request(REQUEST, sink)
                await until(lambda sink=sink: sink.ended)
            assert pool.idle == 3
            await until(lambda: pool.in_use == 0)
            idle = list(pool._idle)
            again = await pool.acquire()
            assert again.reused
            assert again._protocol is idle[-1]
            again.release()
            assert (pool.opened, pool.idle, pool.in_use) == (5, 3, 0)
            loop = asyncio.get_running_loop()
            idle[0].idle_at -= 5.0
            pool.sweep(loop.time())
            assert pool.idle == 2
            for protocol in idle:
                protocol.idle_at -= 5.0
            fresh = await pool.acquire()  # without a sweep: too old all the same
            assert not fresh.reused
            assert pool.opened == 6
            assert len(writers) == 6
            fresh.abort()
            await until(lambda: pool.in_use == 0 and pool.idle == 0)

    run(main(), factory)


class Peer:
    """A backend in the test's own steps: what it does is in our socket before the loop turns."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets: list[socket.socket] = []

    async def idle_connection(self, pool: ConnectionPool) -> socket.socket:
        """Serve one request, so that the pool has an idle connection; our end of it."""
        sink = Sink()
        conn = await pool.acquire()
        conn.request(REQUEST, sink)
        sock, _ = self.listener.accept()
        self.sockets.append(sock)
        assert sock.recv(1000) == REQUEST
        sock.send(OK)
        await until(lambda: sink.ended)
        return sock

    def end(self, sock: socket.socket, how: str) -> None:
        """Do to a connection what makes it unusable."""
        if how == "bytes":
            sock.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            return
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        sock.close()

    def close(self) -> None:
        for sock in (self.listener, *self.sockets):
            sock.close()


@both_loops
@pytest.mark.parametrize("how", ["fin", "reset", "bytes"])
@pytest.mark.parametrize("seen", ["by the loop", "by the peek"])
def test_a_connection_that_died_while_idle_is_not_used(factory, how, seen):
    async def main():
        peer = Peer()
        async with pooled(peer.url) as pool:
            peer.end(await peer.idle_connection(pool), how)
            assert pool.idle == 1
            if seen == "by the loop":
                await until(lambda: pool.idle == 0)
            conn = await pool.acquire()
            assert not conn.reused
            assert (pool.opened, pool.idle) == (2, 0)
            conn.abort()
        peer.close()

    run(main(), factory)


@both_loops
@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("turned", [True, False])
def test_a_request_that_the_peer_can_not_have_read_may_be_replayed(factory, how, turned):
    """Its FIN or RST lay in our socket before the first byte was written, so nothing was written."""

    async def main():
        peer = Peer()
        async with pooled(peer.url) as pool:
            sock = await peer.idle_connection(pool)
            conn = await pool.acquire()
            assert conn.reused
            await asyncio.sleep(0.002)  # acquire's own look is too old to count
            peer.end(sock, how)
            if turned:
                await turns()  # the loop has seen it, too
            sink = Sink()
            conn.request(REQUEST, sink)
            assert sink.calls == []  # never within request()
            await until(lambda: sink.over)
            assert sink.lost is not None
            assert (sink.lost.code, sink.lost.unread) == ("upstream_reset", True)
            await until(lambda: pool.in_use == 0)
        peer.close()

    run(main(), factory)


@both_loops
@pytest.mark.parametrize("reused", [True, False])
def test_a_request_that_was_sent_is_never_called_unread(factory, reused):
    async def main():
        async def handle(reader, writer):
            if reused:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(OK)
            await reader.readuntil(b"\r\n\r\n")
            writer.close()  # it was read, and who knows what was done

        async with backend(handle) as (url, _), pooled(url) as pool:
            if reused:
                await ask(pool)
            sink = Sink()
            conn = await pool.acquire()
            assert conn.reused is reused
            conn.request(REQUEST, sink)
            await until(lambda: sink.over)
            assert (sink.lost.unread, sink.lost.clean_eof, sink.lost.seen_bytes) == (False, True, 0)

    run(main(), factory)


@both_loops
def test_a_former_owner_can_not_reach_the_next_response(factory):
    async def main():
        async def handle(reader, writer):
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
                await asyncio.sleep(0.005)
                writer.write(b"cd")

        async with backend(handle) as (url, _), pooled(url) as pool:
            first = Sink()
            old = await pool.acquire()
            old.request(REQUEST, first)
            await until(lambda: first.ended)
            read = old.bytes_in
            assert read > 4
            second = Sink()
            new = await pool.acquire()
            new.request(REQUEST, second)
            await until(lambda: second.body == b"ab")
            seen: list[str] = []
            old.pause()
            old.half_close(lambda: seen.append("closed"), lambda: seen.append("ended"))
            old.abort()
            old.close()
            old.release()
            assert old.closed
            assert old.bytes_in == read
            await until(lambda: second.ended)
            assert second.body == b"abcd"
            assert seen == []

    run(main(), factory)


@both_loops
def test_the_next_request_may_start_within_on_end(factory):
    async def main():
        async with backend(replies(OK)) as (url, writers), pooled(url) as pool:
            done = asyncio.get_running_loop().create_future()
            count = 0

            async def one():
                sink = Sink()
                sink.on["end"] = next_one
                conn = await pool.acquire()
                conn.request(REQUEST, sink)

            def next_one():
                nonlocal count
                count += 1
                if count == 20:
                    done.set_result(None)
                    return
                step = one()
                with pytest.raises(StopIteration):
                    step.send(None)  # an idle connection is had without a pause

            await one()
            await done
            assert len(writers) == pool.opened == 1

    run(main(), factory)


@both_loops
def test_connect_errors_say_where_and_why(factory):
    async def main():
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
            pool = ConnectionPool(f"http://127.0.0.1:{port}", connect_timeout_s=5.0)
            with pytest.raises(ConnectError, match=f"127.0.0.1:{port}: Connection refused") as caught:
                await pool.acquire()
            assert not caught.value.timed_out
        pool = ConnectionPool("http://no-such-host.invalid", connect_timeout_s=5.0)
        with pytest.raises(ConnectError, match=r"no-such-host\.invalid:80"):
            await pool.acquire()
        assert (pool.opened, pool.connecting, pool.in_use) == (0, 0, 0)
        await pool.close()
        with pytest.raises(ConnectError, match="closed"):
            await pool.acquire()
        for url in ("ftp://x", "http://", "x"):
            with pytest.raises(ValueError, match="URL"):
                ConnectionPool(url, connect_timeout_s=1.0)

    run(main(), factory)


def deaf_listener():
    """A listener whose backlog is full: to connect to it takes for ever."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    return listener, fillers


@both_loops
def test_a_connect_is_timed_and_can_be_cancelled(factory):
    async def main():
        listener, fillers = deaf_listener()
        pool = ConnectionPool(f"http://127.0.0.1:{listener.getsockname()[1]}", connect_timeout_s=5.0)
        with pytest.raises(ConnectError, match=r"within 0\.05 s") as caught:
            await pool.acquire(timeout_s=0.05)
        assert caught.value.timed_out
        task = asyncio.create_task(pool.acquire())
        await turns()
        assert (pool.connecting, pool.in_use) == (1, 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (pool.opened, pool.connecting, pool.in_use) == (0, 0, 0)
        for sock in (listener, *fillers):
            sock.close()
        await pool.close()

    run(main(), factory)


@both_loops
def test_cancelled_at_every_step_of_connecting(factory):
    """Nothing stays open, whenever the cancel comes."""

    async def main():
        async with backend(replies(OK)) as (url, writers), pooled(url) as pool:
            for step in range(12):
                task = asyncio.create_task(pool.acquire())
                for _ in range(step):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    conn = await task
                except asyncio.CancelledError:
                    pass
                else:
                    conn.abort()
                await until(lambda: (pool.connecting, pool.in_use, pool.idle) == (0, 0, 0))
            for number in range(200):  # a storm
                tasks = [asyncio.create_task(pool.acquire()) for _ in range(5)]
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if not isinstance(result, BaseException):
                        result.abort()
            await until(lambda: (pool.connecting, pool.in_use, pool.idle) == (0, 0, 0))
            assert (await ask(pool)).body == b"ok"
            await pool.close()
            for writer in writers:
                writer.close()

    run(main(), factory)


@both_loops
def test_closing_the_pool_ends_what_is_under_way(factory):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(3600)

        async with backend(handle) as (url, _), pooled(url) as pool:
            sinks = [Sink() for _ in range(3)]
            for sink in sinks:
                (await pool.acquire()).request(REQUEST, sink)
            unused = await pool.acquire()
            assert pool.in_use == 4
            await pool.close()
            assert [(s.lost.code, s.lost.peer_closed) for s in sinks] == [("upstream_reset", False)] * 3
            assert unused.closed
            assert pool.in_use == 0
            sink = Sink()
            unused.request(REQUEST, sink)
            await until(lambda: sink.over)
            assert sink.lost is not None

    run(main(), factory)


@both_loops
def test_a_server_that_closes_what_it_kept_is_asked_on_new_connections(factory):
    """Without saying so in its answer: after the first such race no connection is used twice for a while."""

    async def main():
        pool = ConnectionPool("http://127.0.0.1:9", connect_timeout_s=1.0)
        closer = await asyncio.start_server(_answer_and_close, "127.0.0.1", 0)
        pool.port = closer.sockets[0].getsockname()[1]
        for _ in range(3):
            conn = await pool.acquire()
            sink = Sink()
            conn.request(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", sink)
            await until(lambda sink=sink: sink.over)
            await until(lambda: pool.idle == 0)
        assert pool.opened == 3
        await pool.close()
        closer.close()
        await closer.wait_closed()

    run(main(), factory)


async def _answer_and_close(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    writer.close()
