"""An event loop under virtual time whose turns are shuffled by a seed.

Nothing ready: the clock jumps to the next timer. Several things ready in one turn: they run in an order that the seed
draws, so that a thousand seeds are a thousand interleavings, and one seed is always the same one. Nothing ready and
no timer set: `Deadlock`, which names the tasks that wait. There is no I/O: connections are those of `net`, which keep
the order of their own bytes and ends whatever is shuffled.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Deadlock(Exception):
    """Nothing is ready and no timer is set: the tasks named in it wait for ever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. `each_turn` is called after each of `turns`: the place for invariants."""

    def __init__(self, seed: int, *, max_turns: int = 5_000_000) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.turns = 0
        self.each_turn: Callable[[], None] = lambda: None
        self._max_turns = max_turns
        self._at = 1000.0  # not 0: an instant that was never set shall not look like one
        self.failures: list[str] = []  # what callbacks raised
        self.set_exception_handler(self._note_failure)

    def time(self) -> float:
        """Virtual seconds."""
        return self._at

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _run_once(self) -> None:
        """One turn, in place of the selector's."""
        state: Any = self
        ready, timers = state._ready, state._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False
            state._timer_cancelled_count -= 1
        if not ready:
            if not timers:
                raise Deadlock(f"nothing is ready at {self._at:.3f} s and no timer is set; {self.waiting()}")
            self._at = max(self._at, timers[0].when())
        while timers and timers[0].when() <= self._at:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        batch = list(ready)
        ready.clear()
        self.rng.shuffle(batch)
        self.turns += 1
        for handle in batch:
            if not handle.cancelled():
                handle._run()
        self.each_turn()
        if self.turns >= self._max_turns:
            raise Deadlock(f"no end after {self.turns} turns; {self.waiting()}")

    def waiting(self) -> str:
        """The tasks that have not ended, for people."""
        return "\n  ".join(["waiting:", *sorted(map(repr, asyncio.all_tasks(self)))])

    async def create_connection(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        """Put a protocol on a connected socket of `net`."""
        return await sock.attach(protocol_factory())

    async def create_server(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        """Serve on a listener of `net`."""
        return sock.serve(protocol_factory)


def run(loop: VirtualLoop, main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end on `loop`, and close it. No task may be left, no callback may have raised."""
    try:
        result = loop.run_until_complete(main)
        assert not asyncio.all_tasks(loop), loop.waiting()
        assert loop.failures == []
        return result
    finally:
        loop.each_turn = lambda: None
        loop._max_turns = loop.turns + 10_000
        while left := asyncio.all_tasks(loop):  # after a failure; what ends may begin something else
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
