"""The same over TLS, which comes from the loop: requests, departure, the peer's close, verification."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess

import pytest

from inferencemesh.runtime.http1 import ConnectError
from tests.runtime.http1.support import (
    OK,
    REQUEST,
    Caller,
    Clock,
    Recorder,
    Sink,
    ask,
    backend,
    both_loops,
    echo,
    get,
    pooled,
    post,
    replies,
    run,
    serving,
    turns,
    until,
)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    """A server's and a client's context for a certificate of 127.0.0.1."""
    where = tmp_path_factory.mktemp("tls")
    key, cert = where / "key.pem", where / "cert.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "1", "-subj", "/CN=test"]
    try:
        subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))


@both_loops
def test_requests_and_errors(factory, contexts):
    async def main():
        app = Recorder(echo)
        async with serving(app, ssl=contexts[0]) as server:
            async with Caller.to(server, ssl=contexts[1]) as caller:
                caller.send(get("/a") + post(b"b", path="/b"))
                assert [(await caller.reply()).body for _ in range(2)] == [b"/a ", b"/b b"]
                caller.send(get("/", "Connection: close"))
                assert (await caller.reply()).status == 200
                assert await caller.rest() == b""
            async with Caller.to(server, ssl=contexts[1]) as caller:
                clock = Clock(server)
                caller.send(b"nonsense\r\n\r\n" + b"x" * 300_000)
                assert (await caller.reply()).status == 400
                clock.advance(2.1)
                assert await caller.rest() == b""
            await until(lambda: server.connections == 0)
            async with pooled(f"https://127.0.0.1:{server.port}", ssl=contexts[1]) as pool:
                for _ in range(5):
                    assert (await ask(pool)).body == b"/ "
                assert (pool.opened, pool.idle) == (1, 1)

    run(main(), factory)


@both_loops
def test_departure(factory, contexts):
    async def main():
        app = Recorder()
        async with serving(app, ssl=contexts[0]) as server:
            for behind in (b"", get("/behind")):
                async with Caller.to(server, ssl=contexts[1]) as caller:
                    caller.send(get("/") + behind)
                    await until(lambda: app.calls)
                    caller.abort()
                    await until(lambda: app.departed)
                    app.calls.clear()
                    app.departed.clear()

    run(main(), factory)


@both_loops
@pytest.mark.parametrize("ends", [False, True])
def test_an_end_of_ours_is_heard_and_the_peer_s_close_is_seen(factory, contexts, ends):
    """Contract B5: with TLS, too, the slot waits for the peer's own close, or for the end of its message."""

    async def main():
        app = Recorder()
        departed = asyncio.Event()

        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
            if not ends:
                await reader.read()
            else:
                await departed.wait()
                writer.write(b"defghi")
                await asyncio.sleep(3600)
            writer.close()

        async with backend(handle, contexts[0]) as (url, _), pooled(url, ssl=contexts[1]) as pool:
            sink = Sink()
            seen: list[str] = []
            conn = await pool.acquire()
            conn.request(REQUEST, sink)
            await until(lambda: sink.body)
            if ends:
                departed.set()
            conn.half_close(lambda: seen.append("closed"), lambda: seen.append("ended"))
            await until(lambda: seen)
            # A loop may end the connection on our FIN before the rest of the message was sent: then it is a close.
            assert seen == ["closed"] or (ends and seen == ["ended"])
            await until(lambda: pool.in_use == 0)

        async with (
            serving(app, ssl=contexts[0]) as server,
            pooled(f"https://127.0.0.1:{server.port}", ssl=contexts[1]) as pool,
        ):
            sink = Sink()
            conn = await pool.acquire()
            conn.request(REQUEST, sink)
            await until(lambda: app.calls)
            app.calls[0][1].start(200, [], length=None, first=b"x")
            await until(lambda: sink.body)
            seen.clear()
            conn.half_close(lambda: seen.append("closed"))
            await until(lambda: seen)
            assert app.departed == [app.calls[0][1]]
            assert conn.peer_closed
            await until(lambda: pool.in_use == 0)

    run(main(), factory)


@both_loops
def test_an_abort_of_ours_is_no_evidence(factory, contexts):
    async def main():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK[:-1])
            await asyncio.sleep(3600)

        async with backend(handle, contexts[0]) as (url, _), pooled(url, ssl=contexts[1]) as pool:
            sink = Sink()
            seen: list[str] = []
            conn = await pool.acquire()
            conn.request(REQUEST, sink)
            await until(lambda: sink.body)
            conn.add_close_callback(lambda: seen.append("closed"))
            conn.abort()
            await until(lambda: pool.in_use == 0)
            await turns()
            assert (seen, conn.peer_closed) == ([], False)

    run(main(), factory)


@both_loops
def test_an_unknown_certificate_is_a_connect_error(factory, contexts):
    async def main():
        async with backend(replies(OK), contexts[0]) as (url, _), pooled(url) as pool:
            with pytest.raises(ConnectError, match="certificate verify failed"):
                await pool.acquire()
            assert (pool.opened, pool.in_use) == (0, 0)
            async with pooled(url.replace("https", "http")) as plain:
                assert (await ask(plain)).lost.code.startswith("upstream")

    run(main(), factory)


@both_loops
def test_cancelled_at_every_step_of_connecting(factory, contexts):
    async def main():
        async with backend(replies(OK), contexts[0]) as (url, _), pooled(url, ssl=contexts[1]) as pool:
            for step in range(30):
                task = asyncio.create_task(pool.acquire())
                for _ in range(step):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    (await task).abort()
                await until(lambda: (pool.connecting, pool.in_use, pool.idle) == (0, 0, 0))
            assert (await ask(pool)).body == b"ok"

    run(main(), factory)
