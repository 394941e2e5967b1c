"""The state of admission at one instant, as plain values that add up (contract F2). Durations in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend's ledger: `free = max(0, capacity - running - draining)`.

    `capacity` is what is configured, `believed` what its own answers leave of it (contract B6). `free` counts
    against `believed`; it may be in use by nobody because the backend is down, cordoned or its breaker open.
    """

    name: str
    capacity: int
    believed: int
    free: int
    running: int
    draining: int
    up: bool
    cordoned: bool
    breaker: str  # closed | open | half_open
    draining_oldest_s: float
    reserved_for: str | None = None  # id of the wide request that collects its slots


@dataclass(frozen=True, slots=True)
class LineView:
    """One model's line. `limit` is the bound in force, `oldest_s` the longest time in line of its waiters."""

    model: str
    total: int
    oldest_s: float
    by_tenant: dict[str, int]
    limit: int
    service_s: float | None = None  # mean slot-seconds of a request; None before the first has ended
    wait_s: float | None = None  # what a newcomer at the end of the line would wait by the same measure
    returns_admitted: int = 0  # refused callers who came back at the time told and found a slot or a place
    returns_refused: int = 0  # ... and were refused again


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant: slots running (draining apart), requests waiting, service charged since it is known."""

    name: str
    running: int
    waiting: int
    service: float
    draining: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the start: `accepted = waiting + running + completed + failed + cancelled + expired`.

    `grants` and `settled` count leases: `grants = settled + held` where a lease is held while running or
    draining.
    """

    accepted: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    refused: int
    running: int
    waiting: int
    grants: int
    settled: int
    waiting_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one instant; `at` is the monotonic time it was taken for."""

    at: float
    backends: tuple[BackendView, ...]
    lines: tuple[LineView, ...]
    tenants: tuple[TenantView, ...]
    totals: Totals
