"""Everything that admission holds, in one place, and how it is built. The steps that change it are elsewhere."""

from __future__ import annotations

import random
from collections.abc import Iterable

from inferencemesh.core.charge import ChargePolicy
from inferencemesh.core.deadline import Expiries
from inferencemesh.core.fairqueue import FairQueue
from inferencemesh.core.group import Group
from inferencemesh.core.model import BackendSpec, BreakerSpec, ClassSpec, Limits, ModelSpec, TenantSpec
from inferencemesh.core.outcome import Kind
from inferencemesh.core.places import Places
from inferencemesh.core.pool import Pool, group
from inferencemesh.core.request import Lease, Request
from inferencemesh.core.served import Served
from inferencemesh.core.slots import Backend
from inferencemesh.core.tenant import Tenant


class Books:
    """The counts of the invariant; `core.check` holds them against the things they count."""

    __slots__ = (
        "accepted",
        "ended",
        "exempt_bytes",
        "grants",
        "held",
        "refused",
        "running",
        "settled",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.accepted = 0  # requests
        self.refused = 0
        self.waiting = 0
        self.running = 0
        self.ended: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self.grants = 0  # leases given
        self.settled = 0  # leases freed
        self.held = 0  # slots running, draining, or set aside for a collecting waiter
        self.waiting_bytes = 0
        self.exempt_bytes = 0  # of waiters that a backend sent back


class State:
    """Backends, models, pools, tenants, books."""

    __slots__ = (
        "alarms",
        "backends",
        "books",
        "bytes",
        "charge",
        "closed",
        "expiries",
        "groups",
        "limits",
        "models",
        "models_of",
        "next_change_at",
        "numbers",
        "outrunning",
        "places",
        "pool_of",
        "pool_with",
        "pools",
        "rng",
        "tenants",
        "timed",
    )

    def __init__(
        self,
        backends: Iterable[BackendSpec],
        models: Iterable[ModelSpec],
        tenants: Iterable[TenantSpec],
        limits: Limits,
        *,
        rng: random.Random,
        breaker: BreakerSpec,
        charge: ChargePolicy,
        classes: Iterable[ClassSpec],
        floor: float | None,
    ) -> None:
        specs = list(models)
        self.limits = limits
        self.rng = rng
        self.charge = charge
        self.groups = {
            spec.name: Group(spec, band if floor is not None else 0)
            for band, spec in enumerate(classes)
            if floor is not None or spec.max_running is not None
        }
        self.books = Books()
        self.expiries = Expiries()
        self.places = Places()  # over the process
        self.bytes = Places()
        self.closed: str | None = None  # the code that every offer is refused with
        self.numbers = 0  # of arrivals
        self.next_change_at = float("inf")  # of a backend, by time alone
        self.timed: dict[Backend, None] = {}  # those with such a change ahead
        self.alarms: list[tuple[float, int, Request]] = []  # a heap; entries may be out of date
        self.outrunning: list[tuple[float, int, Lease]] = []  # a heap: when a lease may outrun its charge
        self.backends = {spec.name: Backend(spec, breaker) for spec in backends}
        self.tenants = {spec.name: Tenant(spec, configured=True) for spec in tenants}
        self.pools: list[Pool] = []
        self.pool_of: dict[Backend, Pool] = {}
        self.pool_with: dict[FairQueue, Pool] = {}
        self.models: dict[str, Served] = {}
        self.models_of: dict[Backend, list[Served]] = {backend: [] for backend in self.backends.values()}
        for names in group(self.backends, specs, together=limits.max_running is not None):
            members = [self.backends[name] for name in names]
            sets = {frozenset(spec.backends) for spec in specs if spec.backends[0] in names}
            pool = Pool(
                members,
                FairQueue(
                    lags=charge.lifts and (len(sets) > 1 or bool(self.groups)),
                    apart=charge.lifts and len(sets) > 1,
                    lifts=charge.lifts,
                    floor=floor,
                    dropped=self.forget,
                ),
            )
            self.pools.append(pool)
            self.pool_with[pool.queue] = pool
            for backend in members:
                self.pool_of[backend] = pool
        reaches: dict[frozenset[str], int] = {}
        for spec in specs:
            served = [self.backends[name] for name in spec.backends]
            reach = reaches.setdefault(frozenset(spec.backends), len(reaches))
            model = Served(
                spec,
                served,
                self.pool_of[served[0]],
                rng,
                charge=charge,
                most=limits.max_running,
                reach=reach,
                apart=self.groups,
            )
            self.models[spec.name] = model
            for backend in served:
                self.models_of[backend].append(model)

    def tenant(self, name: str) -> Tenant:
        """Return the tenant of that name; an unknown one with weight 1, remembered only once it is accepted."""
        tenant = self.tenants.get(name)
        return Tenant(TenantSpec(name), configured=False) if tenant is None else tenant

    def remember(self, tenant: Tenant) -> Tenant:
        """Return the tenant that is remembered under this one's name: this one, unless there is another by now."""
        kept = self.tenants.setdefault(tenant.name, tenant)
        kept.known = True
        return kept

    def forget(self, tenant: Tenant) -> None:
        """Drop a tenant that nobody configured and nothing is left of."""
        if not tenant.configured and tenant.idle and self.tenants.get(tenant.name) is tenant:
            del self.tenants[tenant.name]
            tenant.known = False

    def schedule(self, backend: Backend) -> None:
        """Note when time alone next changes `backend`."""
        if backend.next_change_at() < float("inf"):
            self.timed[backend] = None
        else:
            self.timed.pop(backend, None)
        self.next_change_at = min((b.next_change_at() for b in self.timed), default=float("inf"))
