from __future__ import annotations

import asyncio

import pytest

from inferencemesh.sim.clock import Clock
from tests.sim.fakeloop import Loop


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def clock(loop: Loop) -> Clock:
    return Clock(loop)  # type: ignore[arg-type]


def test_calls_come_in_the_order_of_their_instants(loop: Loop, clock: Clock) -> None:
    seen: list[str] = []
    for at, name in ((103.0, "c"), (101.0, "a"), (102.0, "b"), (101.0, "a2")):
        clock.at(at, lambda name=name: seen.append(name))  # type: ignore[misc]
    loop.run_to(102.5)
    assert seen == ["a", "a2", "b"]
    loop.run_to(110.0)
    assert seen[-1] == "c"


def test_one_handle_of_the_loop_serves_all(loop: Loop, clock: Clock) -> None:
    for number in range(100):
        clock.at(200.0 - number, lambda: None)
    assert [handle.at for handle in loop.armed()] == [101.0]


def test_a_cancelled_call_does_not_come(loop: Loop, clock: Clock) -> None:
    seen: list[int] = []
    timers = [clock.at(101.0 + n, lambda n=n: seen.append(n)) for n in range(2000)]  # type: ignore[misc]
    for timer in timers[1:]:
        timer.cancel()
        timer.cancel()
    loop.run_to(5000.0)
    assert seen == [0]
    timers[0].cancel()


def test_a_call_may_ask_for_the_next(loop: Loop, clock: Clock) -> None:
    seen: list[float] = []

    def again() -> None:
        seen.append(clock.now())
        if len(seen) < 5:
            clock.at(101.0 + len(seen) * 0.5, again)

    clock.at(101.0, again)
    loop.run_to(200.0)
    assert seen == [101.0, 101.5, 102.0, 102.5, 103.0]


def test_a_pause_moves_everything_due(loop: Loop, clock: Clock) -> None:
    seen: list[float] = []
    clock.at(103.0, lambda: seen.append(loop.time()))
    loop.run_to(102.0)
    clock.pause()
    clock.pause()
    loop.run_to(150.0)
    assert clock.now() == 102.0
    assert clock.paused
    assert not loop.armed()
    clock.resume()
    clock.resume()
    assert clock.now() == 102.0
    loop.run_to(150.9)
    assert not seen
    loop.run_to(152.0)
    assert seen == [151.0]
    clock.pause()
    loop.run_to(160.0)
    clock.resume()
    assert clock.now() == pytest.approx(104.0)


def test_clear_forgets_all(loop: Loop, clock: Clock) -> None:
    timer = clock.at(101.0, lambda: pytest.fail("called"))
    clock.clear()
    timer.cancel()
    loop.run_to(200.0)


def test_a_failing_call_does_not_stop_the_others(loop: Loop, clock: Clock) -> None:
    seen: list[int] = []

    def fail() -> None:
        raise RuntimeError("on purpose")

    clock.at(101.0, fail)
    clock.at(102.0, lambda: seen.append(1))
    with pytest.raises(RuntimeError):
        loop.run_to(101.5)
    loop.run_to(103.0)
    assert seen == [1]


def test_it_keeps_time_on_a_real_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        clock = Clock(loop)
        done = asyncio.Event()
        start = clock.now()
        clock.at(start + 0.03, done.set)
        await asyncio.wait_for(done.wait(), 10)
        assert clock.now() - start >= 0.029

    asyncio.run(main())
