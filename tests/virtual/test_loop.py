"""The virtual loop and network themselves: what the random runs stand on."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.virtual.loop import Deadlock, VirtualLoop, run
from tests.virtual.net import Network, Socket, Weather


def order_of(seed: int) -> list[int]:
    """The order in which twenty tasks that are ready together run."""
    seen: list[int] = []

    async def step(number: int) -> None:
        await asyncio.sleep(0)
        seen.append(number)

    async def main() -> None:
        await asyncio.gather(*map(step, range(20)))

    run(VirtualLoop(seed), main())
    return seen


def test_a_seed_is_an_order() -> None:
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(20)}) == 20
    assert sorted(order_of(1)) == list(range(20))


def test_time_jumps_to_the_next_timer() -> None:
    loop = VirtualLoop(0)
    woke: list[float] = []

    async def sleeper(delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        woke.append(round(loop.time() - 1000.0, 6))

    async def main() -> None:
        async with asyncio.timeout(7200):
            await asyncio.gather(*map(sleeper, (3600.0, 0.25, 86.0)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 10)

    run(loop, main())
    assert woke == [0.25, 86.0, 3600.0]
    assert loop.time() == pytest.approx(1000.0 + 3610.0)
    assert loop.turns < 100


def test_a_deadlock_names_who_waits() -> None:
    async def waits_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(
        Deadlock, match=r"nothing is ready at 1000\.000 s and no timer is set; waiting:(.|\n)*waits_for_ever"
    ):
        run(VirtualLoop(0), waits_for_ever())


def test_a_loop_without_end_is_ended() -> None:
    async def spins() -> None:
        for _ in range(10**9):
            await asyncio.sleep(0)

    with pytest.raises(Deadlock, match="no end after 500 turns"):
        run(VirtualLoop(0, max_turns=500), spins())


class Peer(asyncio.Protocol):
    """Keeps what it got, and how it ended."""

    def __init__(self, *, keep_open: bool = False) -> None:
        self.got = bytearray()
        self.ends: list[object] = []
        self.writable: list[str] = []
        self.keep_open = keep_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def eof_received(self) -> bool:
        self.ends.append("eof")
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append("lost" if exc is None else type(exc).__name__)

    def pause_writing(self) -> None:
        self.writable.append("pause")

    def resume_writing(self) -> None:
        self.writable.append("resume")


async def pair(loop: VirtualLoop, weather: Weather, **how: bool) -> tuple[Peer, Peer, Network]:
    net = Network(loop, weather, lambda _: None)
    ours, theirs = Peer(**how), Peer(**how)
    net.listen(80).serve(lambda: theirs)
    sock: Socket = await net.connect(80)
    await sock.attach(ours)
    await asyncio.sleep(1)
    return ours, theirs, net


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_whole_and_in_order_and_before_the_end(seed: int) -> None:
    loop = VirtualLoop(seed)
    sent = random.Random(seed).randbytes(50_000)

    async def main() -> None:
        ours, theirs, net = await pair(loop, Weather(latency_s=0.05, room_bytes=3000, split=0.5))
        ours.transport.set_write_buffer_limits(high=0)
        for start in range(0, len(sent), 7000):
            ours.transport.write(sent[start : start + 7000])
            await asyncio.sleep(loop.rng.choice((0, 0.01)))
        ours.transport.close()
        await asyncio.sleep(300)
        assert bytes(theirs.got) == sent
        assert theirs.ends == ["eof", "lost"]
        assert ours.ends == ["lost"]
        assert ours.writable[:2] == ["pause", "resume"]
        assert not net.open

    run(loop, main())


def test_a_half_close_leaves_the_other_direction_open() -> None:
    loop = VirtualLoop(3)

    async def main() -> None:
        ours, theirs, net = await pair(loop, Weather(), keep_open=True)
        ours.transport.write(b"question")
        ours.transport.write_eof()
        await asyncio.sleep(1)
        assert (bytes(theirs.got), theirs.ends) == (b"question", ["eof"])
        theirs.transport.write(b"answer")
        theirs.transport.close()
        await asyncio.sleep(1)
        assert (bytes(ours.got), ours.ends) == (b"answer", ["eof"])
        ours.transport.close()
        await asyncio.sleep(1)
        assert not net.open

    run(loop, main())


def test_a_close_with_bytes_unread_is_a_reset_and_so_is_a_write_to_the_dead() -> None:
    loop = VirtualLoop(4)

    async def main() -> None:
        ours, theirs, net = await pair(loop, Weather(split=0.0))
        theirs.transport.pause_reading()
        ours.transport.write(b"unread")
        await asyncio.sleep(1)
        theirs.transport.close()
        await asyncio.sleep(1)
        assert ours.ends == ["ConnectionResetError"]
        assert not net.open
        ours, theirs, net = await pair(loop, Weather(split=0.0), keep_open=True)
        theirs.transport.close()
        await asyncio.sleep(1)
        assert ours.ends == ["eof"]
        for _ in range(
            2
        ):  # the first is answered by a reset, which only the second meets: nothing reads any more
            ours.transport.write(b"to nobody")
            await asyncio.sleep(1)
        assert ours.ends == ["eof", "ConnectionResetError"]
        assert not net.open

    run(loop, main())


def test_a_paused_reader_stops_the_writer() -> None:
    loop = VirtualLoop(5)

    async def main() -> None:
        ours, theirs, net = await pair(loop, Weather(room_bytes=1000))
        theirs.transport.pause_reading()
        ours.transport.write(b"x" * 100_000)
        await asyncio.sleep(60)
        assert ours.transport.get_write_buffer_size() >= 99_000
        assert ours.writable == ["pause"]
        theirs.transport.resume_reading()
        await asyncio.sleep(60)
        assert len(theirs.got) == 100_000
        assert ours.writable == ["pause", "resume"]
        ours.transport.abort()
        await asyncio.sleep(1)
        assert not net.open

    run(loop, main())
