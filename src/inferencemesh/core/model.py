"""What admission is told about the world: backends, models, tenants, limits. Plain values, checked once.

Durations are floats in seconds (`_s`), sizes in bytes (`_bytes`). A reload builds new values; nothing here
changes.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """A model server and how many units of work it runs for us at once (contract A1).

    `slots` may be 0 (known, but gives nothing yet). `weight` steers `least_busy`: twice the weight, twice the
    load.
    """

    name: str
    slots: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.slots < 0:
            raise ValueError(f"backend {self.name}: slots must not be negative")
        if not self.weight > 0:
            raise ValueError(f"backend {self.name}: weight must be positive")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model, the backends that serve it, and its line (contract A2, A3, A8, D8).

    `max_waiting` None is `auto`: slots x `wait_budget_s` / mean service time, within [1, 4 x slots]; 0
    refuses at once. `max_waiting_per_tenant` None: the whole line while alone, displacement when contested.
    """

    name: str
    backends: tuple[str, ...]
    max_waiting: int | None = None
    wait_budget_s: float = 5.0
    max_waiting_per_tenant: int | None = None
    queue_timeout_s: float = 10.0
    refuse_hopeless: bool = True
    routing: str = "least_busy"  # | round_robin
    keeps_places: bool = True  # for callers who come back when they were told to; see `core.claims`
    by_class: tuple[
        tuple[str, ModelSpec], ...
    ] = ()  # classes with a line of their own: this, with its bounds

    def __post_init__(self) -> None:
        if not self.backends:
            raise ValueError(f"model {self.name}: no backends")
        if len(set(self.backends)) != len(self.backends):
            raise ValueError(f"model {self.name}: a backend is named twice")
        if self.routing not in ("least_busy", "round_robin"):
            raise ValueError(f"model {self.name}: unknown routing {self.routing!r}")
        for bound in (self.max_waiting, self.max_waiting_per_tenant):
            if bound is not None and bound < 0:
                raise ValueError(f"model {self.name}: a bound must not be negative")
        if not (self.queue_timeout_s > 0 and self.wait_budget_s > 0):
            raise ValueError(f"model {self.name}: durations must be positive")


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """Who is served, its weight (contract D3) and its own limits; None is no limit of its own."""

    name: str
    weight: float = 1.0
    max_running: int | None = None  # slots held at once, draining included
    max_waiting: int | None = None  # over all lines
    reserved: int = 0  # slots over all backends that it gets before others do, whenever it waits

    def __post_init__(self) -> None:
        if not 1e-6 <= self.weight <= 1e6:
            raise ValueError(f"tenant {self.name}: weight must be within 0.000001..1000000")
        for bound in (self.max_running, self.max_waiting, self.reserved):
            if bound is not None and bound < 0:
                raise ValueError(f"tenant {self.name}: a bound must not be negative")


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """A class of requests over all tenants (contract D6); the first of several is the most urgent."""

    name: str
    max_running: int | None = None  # slots held at once, draining included

    def __post_init__(self) -> None:
        if self.max_running is not None and self.max_running < 1:
            raise ValueError(f"class {self.name}: max_running must be positive")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds over the whole process (contract A2)."""

    max_waiting_total: int = 10_000
    max_waiting_bytes: int = 256 * MIB
    max_running: int | None = None  # slots held at once over all backends, draining included


@dataclass(frozen=True, slots=True)
class FairnessSpec:
    """What tenants share in proportion to their weights (contract D3), and in which order they come.

    `limit_s` is the longest that a request may run: no request is charged more in advance.
    """

    policy: str = "sfq"  # | slots | fifo
    unit: str = "slot_seconds"  # | requests | tokens
    input_token_weight: float = 1.0
    output_token_weight: float = 2.0
    limit_s: float = 600.0
    strict: bool = False  # whether a more urgent class goes first over all tenants
    floor: float = 0.05  # the part of grants that a class gets nevertheless while it waits

    def __post_init__(self) -> None:
        if self.policy not in ("sfq", "slots", "fifo"):
            raise ValueError(f"unknown policy {self.policy!r}")
        if self.unit not in ("requests", "slot_seconds", "tokens"):
            raise ValueError(f"unknown unit {self.unit!r}")
        if not 0 < self.floor <= 1:
            raise ValueError("the floor must be within (0, 1]")
        if min(self.input_token_weight, self.output_token_weight) < 0 or self.limit_s <= 0:
            raise ValueError("token weights must not be negative, and the limit must be positive")


@dataclass(frozen=True, slots=True)
class BreakerSpec:
    """When a failing backend is left alone: `ratio` of `min_requests` or more results within `window_s`.

    It stays open for `open_for_s`; then `half_open` requests at a time try it, and as many successes close
    it.
    """

    ratio: float = 0.5
    min_requests: int = 10
    window_s: float = 30.0
    open_for_s: float = 10.0
    half_open: int = 1


@dataclass(frozen=True, slots=True)
class RetrySpec:
    """Bounds on retries (contract A9).

    `attempts` per request, the first included; over all requests within `window_s` at most `budget` retries
    per request, but `burst` at least. A budget of 0 allows none.
    """

    attempts: int = 2
    budget: float = 0.1
    window_s: float = 30.0
    burst: int = 3
