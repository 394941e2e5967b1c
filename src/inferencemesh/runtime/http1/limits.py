"""What bounds the server: `ServerLimits`, and the one `ByteBudget` for bodies (contract A11, G2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of one listener. Sizes in bytes, durations in seconds."""

    header_bytes: int = 32 * 1024  # request line and fields, with the blank line
    header_timeout_s: float = 10.0  # from accept, or from the first byte of a later head, to its end
    body_timeout_s: float = 30.0  # from the end of the head to the end of the body
    keepalive_s: float = 620.0  # an idle connection between two requests
    max_connections: int = 10_000
    per_peer: int | None = None  # connections of one address
    send_timeout_s: float = 30.0  # a caller that takes nothing while bytes are buffered for it
    linger_s: float = 2.0  # how long input is discarded after an answer that ends the connection
    header_fields: int = 256  # fields in one head


class BudgetWaiter:
    """One place in the line for body memory; ask `ByteBudget.cancel` to leave it."""

    __slots__ = ("granted", "n")

    def __init__(self, n: int, granted: Callable[[], None]) -> None:
        self.n = n
        self.granted = granted


class ByteBudget:
    """One budget, in bytes, over all bodies that are being read, waiting, or kept for a retry (contract A11).

    First come, first served: while somebody waits, nobody who came later is served before.
    Nothing here awaits; a waiter's callback runs inside the `release` or `cancel` that made room, so it must only
    note the fact and schedule the rest.
    """

    __slots__ = ("_line", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._line: OrderedDict[BudgetWaiter, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many bodies wait for room."""
        return len(self._line)

    def reserve(self, n: int) -> bool:
        """Take `n` bytes now, or return False; False also while others wait for room."""
        if self._line or self.used + n > self.limit:
            return False
        self.used += n
        return True

    def take(self, n: int) -> None:
        """Book `n` bytes that are in memory already, beyond the limit if need be: one read of one connection."""
        self.used += n

    def wait(self, n: int, granted: Callable[[], None]) -> BudgetWaiter:
        """Join the line; `granted` is called once, when the `n` bytes have been reserved for the waiter."""
        waiter = BudgetWaiter(n, granted)
        self._line[waiter] = None
        return waiter

    def cancel(self, waiter: BudgetWaiter) -> None:
        """Leave the line. Idempotent; does nothing once granted (the bytes are then the owner's to release)."""
        if waiter in self._line:
            del self._line[waiter]
            self._serve()

    def release(self, n: int) -> None:
        """Give `n` bytes back and serve whom they make room for."""
        self.used -= n
        if self._line:
            self._serve()

    def _serve(self) -> None:
        line = self._line
        while line:
            waiter = next(iter(line))
            if self.used + waiter.n > self.limit:
                return
            self.used += waiter.n
            del line[waiter]
            waiter.granted()
