from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from inferencemesh.admin.app import admin_app
from inferencemesh.admin.server import AdminServer, bind
from tests.admin.fakes import FakeView


async def served(use: Callable[[AdminServer], Awaitable[None]], app: Any = None) -> None:
    server = AdminServer(app if app is not None else admin_app(FakeView()), bind("127.0.0.1", 0))
    await server.start()
    try:
        await use(server)
    finally:
        await server.close()


def test_serves_on_a_real_socket_and_leaves_signals_alone():
    mine = lambda *_: None  # noqa: E731

    async def use(server: AdminServer) -> None:
        assert signal.getsignal(signal.SIGTERM) is mine
        async with httpx.AsyncClient(base_url=server.url) as client:
            answer = await client.get("/api/state")
            assert answer.json()["ready"] is True
            assert "server" not in answer.headers
            assert (await client.get("/metrics")).status_code == 200

    before = signal.signal(signal.SIGTERM, mine)
    try:
        asyncio.run(served(use))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_taken_port_is_an_os_error_before_anything_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", taken.getsockname()[1])


def test_the_port_is_free_again_after_close():
    async def twice() -> None:
        first = AdminServer(admin_app(FakeView()), bind("127.0.0.1", 0))
        await first.start()
        async with httpx.AsyncClient(base_url=first.url) as client:
            await client.get("/health")
            assert await first.close()
        second = AdminServer(admin_app(FakeView()), bind("127.0.0.1", first.port))
        await second.start()
        assert await second.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(twice())


def test_close_without_start_gives_the_port_back():
    async def never_started() -> int:
        server = AdminServer(admin_app(FakeView()), bind("127.0.0.1", 0))
        assert await server.close()
        return server.port

    port = asyncio.run(never_started())
    bind("127.0.0.1", port).close()


def test_close_cuts_a_request_that_does_not_end(caplog):
    entered = asyncio.Event()

    async def hangs(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    async def use() -> None:
        server = AdminServer(hangs, bind("127.0.0.1", 0))
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await entered.wait()
        began = time.monotonic()
        assert await server.close(0.1) is False
        assert time.monotonic() - began < 5
        assert await reader.read() == b""
        writer.close()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(use())
    assert caplog.text == ""


@pytest.mark.parametrize("hosts", [b"", b"host: localhost\r\nhost: evil.example\r\n"])
def test_no_host_or_two_hosts_are_refused(hosts: bytes):
    async def use(server: AdminServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /api/state HTTP/1.1\r\n" + hosts + b"\r\n")
        status = (await reader.readline()).split()[1]
        assert status in (b"400", b"403")
        writer.close()
        await writer.wait_closed()

    asyncio.run(served(use))
