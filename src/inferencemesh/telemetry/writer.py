"""Lines to a sink that may be slow, from a loop that may not wait.

The caller appends to a bounded deque and goes on; one thread renders and writes. When the sink cannot keep up
the newest entries are dropped and counted, and the log itself says so once it moves again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Entry = TypeVar("Entry")
Sink = Callable[[bytes], object]

CAPACITY = 10_000  # entries; about 10 MB of lines at most
_BATCH = 32  # rendered between two writes: well under 1 ms for which the thread keeps the interpreter
_GATHER_S = 0.02  # lines of a busy moment leave together: at most 50 wake-ups per second
_SAY_LOST_EVERY_S = 10.0


class LineWriter(Generic[Entry]):
    """One background thread that renders entries in order and hands whole lines to `sink`.

    `render` makes the bytes of one entry, line end included; `lost` makes the entry that tells how many were
    dropped. Both run in the thread, as does `sink`, which may block. `put` never blocks.
    """

    def __init__(
        self,
        sink: Sink,
        render: Callable[[Entry], bytes],
        *,
        lost: Callable[[int], Entry] | None = None,
        capacity: int = CAPACITY,
        name: str = "log-writer",
    ) -> None:
        self._sink = sink
        self._render = render
        self._lost = lost
        self._capacity = capacity
        self._entries: deque[Entry] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._idle = False
        self.dropped_total = 0
        self.written_total = 0
        self._told = 0
        self._told_at = -_SAY_LOST_EVERY_S
        # A daemon, so that a sink which never returns cannot keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> bool:
        """Take an entry; False if there was no room (or the writer is closed) and it was dropped."""
        if len(self._entries) >= self._capacity or self._closing.is_set():
            self.dropped_total += 1
            return False
        self._entries.append(entry)
        # Append before reading the flag; the thread sets it before looking at the entries: none is missed.
        if self._idle:
            self._idle = False
            self._wake.set()
        return True

    @property
    def pending(self) -> int:
        """Entries taken and not yet given to the sink."""
        return len(self._entries)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Write what is pending, for at most `timeout_s`; False if the sink did not take it all in time."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        self.dropped_total += len(self._entries)
        self._entries.clear()
        return False

    def _run(self) -> None:
        while True:
            batch = self._take()
            if batch:
                self._write(batch)
                self._say_lost(last=False)
            elif self._closing.is_set():
                if not self._entries:
                    self._say_lost(last=True)
                    return
            else:
                self._rest()

    def _rest(self) -> None:
        self._idle = True
        if not self._entries and not self._closing.is_set():
            self._wake.wait()
        self._idle = False
        self._wake.clear()
        self._closing.wait(_GATHER_S)

    def _take(self) -> list[Entry]:
        entries = self._entries
        batch: list[Entry] = []
        try:
            while len(batch) < _BATCH:
                batch.append(entries.popleft())
        except IndexError:
            pass
        return batch

    def _write(self, batch: list[Entry]) -> None:
        lines: list[bytes] = []
        for entry in batch:
            try:
                lines.append(self._render(entry))
            except Exception:  # one entry that cannot be rendered must not cost the others
                self.dropped_total += 1
        if not lines:
            return
        try:
            self._sink(b"".join(lines))
        except Exception:  # a broken pipe, a full disk, a closed file: the thread lives on
            self.dropped_total += len(lines)
        else:
            self.written_total += len(lines)

    def _say_lost(self, *, last: bool) -> None:
        """Tell of dropped lines in the log itself, seldom while it goes on and once at the end."""
        count = self.dropped_total - self._told
        if not count or self._lost is None:
            return
        now = time.monotonic()
        if last or now - self._told_at >= _SAY_LOST_EVERY_S:
            self._told_at = now
            self._told += count
            before = self.dropped_total
            self._write([self._lost(count)])
            self._told += self.dropped_total - before  # if even this line was lost, do not tell of itself
