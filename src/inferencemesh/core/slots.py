"""The ledger of one backend: what runs there, what drains there, what is free (contract A1, B5, B6).

`held = running + draining`, `free = max(0, capacity - held)`. Draining slots stay counted until the backend's
end was seen or confirmed; a shrink below what is held leaves an excess that only falls. Every lease frees the
object it captured, so a backend that was replaced meanwhile is never credited.

Believed capacity: a backend that says "full" is believed to have no more than what is held there. After a
back-off (0.25 s, doubling to 5 s while its probes keep failing) one more than proven is tried at a time; a
success proves it.
"""

from __future__ import annotations

from inferencemesh.core.breaker import Breaker, BreakerState
from inferencemesh.core.model import BackendSpec, BreakerSpec
from inferencemesh.core.request import InvariantError, Lease, LeaseState, Request

BACKOFF_S = 0.25
BACKOFF_MAX_S = 5.0


class Backend:
    """One model server's slots. `open` is how many a new grant may take now, reservations aside."""

    __slots__ = (
        "_backoff_s",
        "_full_at",
        "breaker",
        "cordoned",
        "draining",
        "drains",
        "name",
        "open",
        "pool_key",
        "proven",
        "quiet_until",
        "reserved_for",
        "resume_at",
        "running",
        "slots",
        "up",
        "weight",
    )

    def __init__(self, spec: BackendSpec, breaker: BreakerSpec) -> None:
        self.name = spec.name
        self.weight = spec.weight
        self.slots = spec.slots  # configured
        self.proven: int | None = None  # less than `slots` after the backend said "full"; None: all of them
        self.running = 0
        self.draining = 0
        self.drains: dict[Lease, None] = {}  # oldest first
        self.up = True
        self.cordoned = False
        self.breaker = Breaker(breaker)
        self.reserved_for: Request | None = None  # the wide request that collects its slots
        self.resume_at: float | None = None  # until then nothing beyond `proven` is tried
        self.quiet_until: float | None = None  # until then nothing is tried at all
        self.pool_key = 0
        self._backoff_s = 0.0
        self._full_at = float("-inf")
        self.open = spec.slots

    def __repr__(self) -> str:
        return f"<Backend {self.name} {self.running}+{self.draining}/{self.capacity}>"

    @property
    def held(self) -> int:
        """Slots that the backend works on for us, or may still work on."""
        return self.running + self.draining

    @property
    def capacity(self) -> int:
        """How many may be held now: the configured slots, or one more than proven, or what is proven."""
        if self.proven is None:
            return self.slots
        return min(self.slots, self.proven if self.resume_at is not None else self.proven + 1)

    @property
    def usable(self) -> bool:
        """Whether work may be sent there at all (up, not cordoned, breaker not open, has slots)."""
        return (
            self.up and not self.cordoned and self.slots > 0 and self.breaker.state is not BreakerState.OPEN
        )

    @property
    def present(self) -> bool:
        """Up and not cordoned, whatever its breaker says."""
        return self.up and not self.cordoned

    def refresh(self) -> None:
        """Recompute `open` after anything it depends on has changed."""
        if not self.up or self.cordoned or self.quiet_until is not None:
            self.open = 0
            return
        breaker = self.breaker
        if breaker.state is not BreakerState.CLOSED and (
            breaker.state is BreakerState.OPEN or breaker.probes >= breaker.spec.half_open
        ):
            self.open = 0
            return
        free = (self.slots if self.proven is None else self.capacity) - self.running - self.draining
        self.open = free if free > 0 else 0

    def take(self, lease: Lease) -> None:
        """Give `lease` its slots: the caller has seen that they are free."""
        width = lease.width
        if width > self.open:
            raise InvariantError(f"{self!r} has no {width} free slots for {lease!r}")
        self.running += width
        lease._level = self.running + self.draining
        if self.breaker.state is BreakerState.HALF_OPEN:
            lease._probe = True
            self.breaker.probes += 1
            self.refresh()
        else:
            self.open -= width

    def drain(self, lease: Lease, now: float) -> None:
        """RUNNING to DRAINING: ended by us, still counted."""
        lease.state = LeaseState.DRAINING
        lease.draining_since = now
        self.running -= lease.width
        self.draining += lease.width
        self.drains[lease] = None
        self._probed(lease)

    def free(self, lease: Lease) -> None:
        """Take the slots back, from RUNNING or DRAINING."""
        if lease.state is LeaseState.RUNNING:
            self.running -= lease.width
        elif lease.state is LeaseState.DRAINING:
            self.draining -= lease.width
            del self.drains[lease]
        else:
            raise InvariantError(f"{lease!r} is freed twice")
        lease.state = LeaseState.FREED
        if lease._probe:
            self._probed(lease)
        self.refresh()

    def _probed(self, lease: Lease) -> None:
        """A half-open trial is over, or no longer ours to watch: another may start."""
        if lease._probe:
            lease._probe = False
            self.breaker.probes -= 1
            self.refresh()

    def said_full(self, lease: Lease, now: float, not_before_s: float) -> None:
        """The backend's own admission refused `lease` (contract B6): believe in what is held there, back off.

        Several answers to grants made before the first of them are one burst and back off once.
        """
        held = self.running + self.draining - (lease.width if lease.state is LeaseState.DRAINING else 0)
        self.proven = min(held, self.slots if self.proven is None else self.proven)
        if self.proven >= self.slots:
            self.proven = None  # shrunk by a resize meanwhile: nothing beyond it can be tried anyway
        if lease.granted_at > self._full_at:
            self._backoff_s = min(BACKOFF_MAX_S, self._backoff_s * 2) if self._backoff_s else BACKOFF_S
        self._full_at = now
        until = now + max(self._backoff_s, not_before_s)
        self.resume_at = until if self.resume_at is None else max(self.resume_at, until)
        lease._level = 0
        self.refresh()

    def proved(self, lease: Lease) -> bool:
        """`lease` got content: return whether that proves one slot more than was believed."""
        if self.proven is None or lease._level <= self.proven or lease.granted_at <= self._full_at:
            return False
        lease._level = 0
        self._backoff_s = 0.0
        self.proven += 1
        if self.proven >= self.slots:
            self.proven = None
            self.resume_at = None
        self.refresh()
        return True

    def keep_quiet(self, until: float) -> None:
        """Try nothing there before `until`, as it asked for."""
        self.quiet_until = until if self.quiet_until is None else max(self.quiet_until, until)
        self.refresh()

    def resize(self, slots: int) -> None:
        """Change the configured slots; what is held beyond them only falls."""
        self.slots = slots
        if self.proven is not None and self.proven >= slots:
            self.proven = None
            self.resume_at = None
        self.refresh()

    def next_change_at(self) -> float:
        """When time alone changes something here; infinity if never."""
        at = float("inf")
        if self.resume_at is not None:
            at = self.resume_at
        if self.quiet_until is not None:
            at = min(at, self.quiet_until)
        if self.breaker.state is BreakerState.OPEN:
            at = min(at, self.breaker.open_until)
        return at

    def elapse(self, now: float) -> bool:
        """Make the changes that are due by `now`; return whether there were any."""
        changed = False
        if self.resume_at is not None and now >= self.resume_at:
            self.resume_at = None
            changed = True
        if self.quiet_until is not None and now >= self.quiet_until:
            self.quiet_until = None
            changed = True
        if self.breaker.state is BreakerState.OPEN and now >= self.breaker.open_until:
            self.breaker.half_open()
            changed = True
        if changed:
            self.refresh()
        return changed
