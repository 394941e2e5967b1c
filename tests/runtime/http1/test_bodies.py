"""Bodies: bounded, paid for as they come, invited, and their memory given back on every path (contract A11)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from inferencemesh.runtime.http1 import BodyPlan, ByteBudget
from tests.runtime.http1.support import (
    Caller,
    Clock,
    Recorder,
    both_loops,
    chunked,
    echo,
    get,
    post,
    run,
    serving,
    turns,
    until,
)


def test_the_budget_serves_in_order():
    budget = ByteBudget(10)
    order: list[str] = []
    assert budget.reserve(6)
    assert not budget.reserve(5)
    big = budget.wait(8, lambda: order.append("big"))
    small = budget.wait(2, lambda: order.append("small"))
    assert not budget.reserve(1)  # nobody passes those who wait
    assert budget.waiting == 2
    budget.release(3)
    assert order == []
    budget.cancel(big)
    budget.cancel(big)
    assert order == ["small"]
    assert (budget.used, budget.waiting) == (5, 0)
    budget.cancel(small)  # granted: nothing to cancel, its owner releases
    assert budget.used == 5
    budget.release(5)
    assert budget.used == 0
    assert budget.reserve(10)


@both_loops
@pytest.mark.parametrize("pieces", [(b"abc",), (b"a", b"bc", b"d" * 5000), ()])
def test_chunked_bodies(factory, pieces):
    async def main():
        app = Recorder(echo)
        data = chunked(*pieces)
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(data)
            assert (await caller.reply()).body == b"/ " + b"".join(pieces)
            for byte in data[:300]:
                caller.send(bytes([byte]))
                await asyncio.sleep(0)
            caller.send(data[300:])
            reply = await caller.reply()
            assert (reply.body, reply.closes) == (b"/ " + b"".join(pieces), False)
            assert not app.errors

    run(main(), factory)


@both_loops
def test_what_follows_a_chunked_body_in_the_same_read_ends_the_connection(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(chunked(b"abc") + get("/smuggled"))
            reply = await caller.reply()
            assert (reply.body, reply.closes) == (b"/ abc", True)
            assert await caller.rest() == b""
            assert len(app.calls) == 1

    run(main(), factory)


@both_loops
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get("/", "Content-Length: 11", method="POST"), 413),
        (post(b"x" * 11), 413),
        (chunked(b"x" * 11), 413),
        (chunked(*[b"x"] * 11), 413),
        (get("/", "Transfer-Encoding: chunked", method="POST") + b"b\r\n" + b"x" * 11, 413),
        (get("/", "Transfer-Encoding: chunked", method="POST") + b"5 \r\n", 400),
        (get("/", "Transfer-Encoding: chunked", method="POST") + b"1;" + b"x" * 40_000, 431),
        (post(b"x" * 10), 200),
        (chunked(b"x" * 10), 200),
    ],
)
def test_bodies_are_bounded_by_length_and_by_chunks(factory, data, status):
    async def main():
        app = Recorder(echo)
        app.head = lambda _: BodyPlan(10)
        async with serving(app) as server, Caller.to(server) as caller:
            caller.send(data)
            reply = await caller.reply()
            assert reply.status == status
            assert reply.closes is (status != 200)
            assert len(app.calls) == (status == 200)
            if status != 200:
                assert server.budget.used == 0
                assert await caller.rest() == b""

    run(main(), factory)


@both_loops
def test_a_body_larger_than_the_whole_budget_is_refused(factory):
    async def main():
        app = Recorder(echo)
        async with serving(app, ByteBudget(100)) as server:
            for data in (get("/", "Content-Length: 101", method="POST"), chunked(b"x" * 101)):
                async with Caller.to(server) as caller:
                    caller.send(data)
                    assert (await caller.reply()).status == 413

    run(main(), factory)


def reading(server):
    """How many connections are reading a body."""
    return sum(conn._request is not None for conn in server._connections)


@both_loops
def test_announced_bodies_hold_nothing_and_whole_ones_wait_for_nobody(factory):
    async def main():
        app = Recorder(echo)
        budget = ByteBudget(100)
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(app, budget))
            for _ in range(16):
                caller = await stack.enter_async_context(Caller.to(server))
                caller.send(get("/", "Content-Length: 100", method="POST"))
            await until(lambda: reading(server) == 16)
            assert budget.used == 0
            small = await stack.enter_async_context(Caller.to(server))
            small.send(post(b"1" * 10))
            assert (await small.reply()).status == 200
        assert budget.used == 0

    run(main(), factory)


@both_loops
def test_reading_pauses_until_there_is_memory_first_come_first_served(factory):
    async def main():
        app = Recorder()
        budget = ByteBudget(100)
        async with (
            serving(app, budget) as server,
            Caller.to(server) as one,
            Caller.to(server) as two,
            Caller.to(server) as three,
        ):
            one.send(post(b"1" * 60))
            await until(lambda: len(app.calls) == 1)
            two.send(get("/", "Content-Length: 50", method="POST"))
            three.send(get("/", "Content-Length: 40", method="POST"))
            await until(lambda: reading(server) == 2)
            assert budget.used == 60  # what is only announced holds nothing
            two.send(b"2" * 50)
            await until(lambda: budget.waiting == 1)
            three.send(b"3" * 40)  # would fit, but is not served before its turn
            await until(lambda: budget.waiting == 2)
            await turns()
            assert len(app.calls) == 1
            assert budget.used == 60
            first = app.calls[0][0]
            assert first.reserved_bytes == 60
            first.release_body()
            first.release_body()
            await until(lambda: len(app.calls) == 3)
            assert [call[0].body[:1] for call in app.calls[1:]] == [b"2", b"3"]
            assert budget.used == 90
            for caller, call in zip((one, two, three), app.calls, strict=True):
                echo(*call)
                assert (await caller.reply()).status == 200
            assert budget.used == 0

    run(main(), factory)


@both_loops
def test_chunks_are_paid_for_as_they_grow(factory):
    async def main():
        app = Recorder()
        budget = ByteBudget(100)
        async with serving(app, budget) as server, Caller.to(server) as one, Caller.to(server) as two:
            one.send(post(b"1" * 60))
            await until(lambda: len(app.calls) == 1)
            two.send(get("/", "Transfer-Encoding: chunked", method="POST") + b"1e\r\n" + b"2" * 30)
            await until(lambda: budget.used == 90)
            two.send(b"\r\n14\r\n" + b"2" * 20 + b"\r\n0\r\n\r\n")
            await until(lambda: budget.waiting == 1)
            assert budget.used == 90
            app.calls[0][0].release_body()
            await until(lambda: len(app.calls) == 2)
            assert (app.calls[1][0].body, budget.used) == (b"2" * 50, 50)

    run(main(), factory)


@both_loops
@pytest.mark.parametrize(
    ("head", "body"),
    [
        (get("/", "Content-Length: 50", method="POST"), b"2" * 50),
        (get("/", "Content-Length: 90", method="POST"), b"2" * 50),
        (b"", chunked(b"2" * 50)),
    ],
)
@pytest.mark.parametrize("end", ["timeout", "server", "granted"])
def test_whoever_waits_for_memory_leaves_nothing_behind(factory, head, body, end):
    async def main():
        app = Recorder()
        budget = ByteBudget(100)
        async with serving(app, budget, body_timeout_s=5.0) as server:
            clock = Clock(server)
            async with Caller.to(server) as one, Caller.to(server) as two:
                one.send(post(b"1" * 60))
                await until(lambda: len(app.calls) == 1)
                if head:
                    two.send(head)
                    await until(lambda: reading(server) == 1)
                two.send(body)
                await until(lambda: budget.waiting == 1)
                if end == "timeout":
                    clock.advance(5.1)
                    reply = await two.reply()
                    assert (reply.status, reply.body) == (503, b"queue_bytes_full")
                elif end == "granted":  # and gone in the same step
                    app.calls[0][0].release_body()
                    for conn in list(server._connections):
                        conn.expel()
                if end != "server":
                    await until(lambda: budget.waiting == 0)
                    assert budget.used == (60 if end == "timeout" else 0)

    run(main(), factory)


@both_loops
def test_the_body_is_invited_only_after_the_head_was_accepted(factory):
    async def main():
        app = Recorder(echo)
        app.head = lambda _: BodyPlan(10)
        budget = ByteBudget(20)
        async with serving(app, budget) as server:
            expect = "Expect: 100-continue"
            async with Caller.to(server) as caller:
                for head, body in (
                    (get("/", expect, "Content-Length: 5", method="POST"), b"hello"),
                    (
                        get("/", expect, "Transfer-Encoding: chunked", method="POST"),
                        b"5\r\nhello\r\n0\r\n\r\n",
                    ),
                ):
                    caller.send(head)
                    assert (await caller.reply()).status == 100
                    caller.send(body)
                    assert (await caller.reply()).body == b"/ hello"
                    caller.send(head + body)  # it has begun to come by itself
                    assert (await caller.reply()).status == 200
                caller.send(get("/", expect))  # nothing to invite
                assert (await caller.reply()).status == 200
            async with Caller.to(server) as caller:
                caller.send(get("/", expect, "Content-Length: 11", method="POST"))
                assert (await caller.reply()).status == 413
            async with Caller.to(server) as caller:
                caller.send(get("/", expect, "Content-Length: 5", version="1.0", method="POST"))
                await turns()
                caller.send(b"hello")
                assert (await caller.reply()).status == 200

    run(main(), factory)


@both_loops
def test_a_body_in_many_reads_is_whole(factory):
    async def main():
        app = Recorder(lambda request, responder: responder.send(200, [], request.body))
        body = bytes(range(256)) * 2000
        async with serving(app) as server, Caller.to(server) as caller:
            for data in (post(body), chunked(*[body[n : n + 1000] for n in range(0, len(body), 1000)])):
                for n in range(0, len(data), 30_011):
                    caller.send(data[n : n + 30_011])
                    await asyncio.sleep(0)
                assert (await caller.reply()).body == body
                app.calls[-1][0].release_body()

    run(main(), factory)
