"""A witness of one history: it sees every step and decision, and keeps books of its own to hold the core's against.

Nothing here is taken from the core but its decisions, the states of the requests and leases that it handed out, and,
for the scheduler's promises, the counters F and V.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from inferencemesh.core.effects import Displaced, Expired, Refused
from inferencemesh.core.request import LeaseState, Request, RequestState
from inferencemesh.core.snapshot import Snapshot
from inferencemesh.core.tenant import SCALE
from tests.prove.steps import SERVICE_S, Core, Decision, LeaseName, Setting, Step

WOULD_WAIT = frozenset({"queue_full", "tenant_queue_full", "queue_bytes_full", "deadline_unreachable"})


@dataclass(slots=True)
class Pair:
    """Two tenants that have both been backlogged and eligible since it began: grants by weight, the one's less the
    other's, as they were at the beginning, at most and at least.
    """

    base: float
    now: float
    most: float
    least: float


@dataclass(slots=True)
class Head:
    """The first waiter of a tenant, and how often each other tenant was granted since."""

    name: str
    allowance: float  # F - V when it became the head: what others may be served before it
    passed: Counter[str]


class Watch:
    """Drives a core and looks on."""

    def __init__(self, setting: Setting, core: Core | None = None) -> None:
        self.setting = setting
        self.core = core or Core(setting)
        self.history: list[Step] = []
        self.log: list[tuple[float, Decision]] = []
        self.weights = {spec.name: spec.weight for spec in setting.tenants}
        self.caps = {spec.name: spec.max_running for spec in setting.tenants}
        self.slots = {spec.name: spec.slots for spec in setting.backends}
        self.slots_before = dict(self.slots)
        self.seen: Snapshot = self.core.admission.snapshot(0.0)
        self.before: Snapshot = self.seen
        # Requests and leases, by our own count.
        self.where: dict[str, str] = {}  # refused | waiting | running | over
        self.ends: Counter[str] = Counter()
        self.freed: Counter[LeaseName] = Counter()
        self.open: dict[LeaseName, LeaseState] = {}
        self.granted_late: list[str] = []
        self.twice: list[str] = []
        # Service.
        self.expected_charge = 0.0
        self.charge_of: dict[LeaseName, int] = {}
        self.keeping: dict[Request, tuple[float, int]] = {}
        self.virtual: dict[int, int] = {}
        self.previous_virtual: dict[int, int] = {}
        # Fairness: only where every waiter could be served by every backend, what was charged is final, and nobody
        # has a reserve; the other units have tests of their own.
        self.final = setting.charge == "requests"
        self.comparable = (
            len({frozenset(model.backends) for model in setting.models}) == 1
            and self.final
            and not setting.classes
            and not any(spec.reserved for spec in setting.tenants)
        )
        self.plain = self.comparable
        self.dispatched: Counter[str] = Counter()
        self.backlog: Counter[str] = Counter()
        self.pairs: dict[tuple[str, str], Pair] = {}
        self.heads: dict[str, Head] = {}
        self.out_of_order: list[tuple[str, str]] = []
        self.unlifted: list[tuple[str, int]] = []
        # Back-off that backends asked for, and completions.
        self.quiet_until: dict[str, float] = {}
        self.completions: Counter[str] = Counter()
        self.refusals: list[Refused] = []
        self.advice: list[tuple[str, str, str, float]] = []  # of refusals in a row at one instant

    # --- driving --------------------------------------------------------------------------------------------

    def do(self, step: Step) -> list[Decision]:
        """Make a step, and look at everything that it has changed."""
        decisions = self.hear(step)
        self.look(step)
        return decisions

    def hear(self, step: Step) -> list[Decision]:
        """Make a step without a look at the whole state: for those on the way to the one that is of interest."""
        core = self.core
        self._foresee(step)
        self.history.append(step)
        decisions = core.do(step)
        for said in decisions:
            self.log.append((core.now, said))
            self._hear(said)
        self._see_leases()
        self._see_service(step)
        return decisions

    def look(self, step: Step) -> None:
        """Look at the whole state, before and after."""
        self.before, self.seen = self.seen, self.core.admission.snapshot(self.core.now)
        self._see_refusals(step)

    def tenant_of(self, name: str) -> str:
        return self.core.requests[name].tenant

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)

    def eligible(self, tenant: str) -> bool:
        cap = self.caps.get(tenant)
        return cap is None or self.held(tenant) < cap

    def held(self, tenant: str) -> int:
        names = (name for name, _ in self.open)
        return sum(self.core.requests[name].width for name in names if self.tenant_of(name) == tenant)

    def waiting(self) -> list[Request]:
        return [r for r in self.core.requests.values() if r.state is RequestState.WAITING]

    # --- seeing ---------------------------------------------------------------------------------------------

    def _foresee(self, step: Step) -> None:
        """What the step itself says, before it is made."""
        self.slots_before = dict(self.slots)  # what time has made grantable was granted before a resize
        match step:
            case ("offer", _, _, _, width, *_) if width > 1:
                self.plain = False
            case ("requeue", name, _, _, not_before):
                self.plain = False
                lease = self.core.leases[self.core.current(name)]
                backend = lease.backend.name
                if not_before > 0:
                    until = self.core.now + not_before
                    self.quiet_until[backend] = max(self.quiet_until.get(backend, 0.0), until)
                self._end_of_run(name)
                self._expect(-self.charge_of.get(self.core.current(name), 0))
                self.charge_of[self.core.current(name)] = 0
                self.where[name] = "waiting"
                self.backlog[self.tenant_of(name)] += 1
            case ("resize", backend, slots):
                self.slots[backend] = slots
            case ("cancel", name):
                self._end(name, "cancelled")
                self._leave(self.tenant_of(name))
            case ("settle", name, ok):
                self._end_of_run(name)
                self._end(name, "completed" if ok else "failed")
                self.completions[self.core.requests[name].model] += 1

    def _end_of_run(self, name: str) -> None:
        if self.where.get(name) != "running":
            self.twice.append(name)

    def _end(self, name: str, how: str) -> None:
        if self.where.get(name) in ("over", "refused"):
            self.twice.append(name)
        self.where[name] = "over"
        self.ends[how] += 1

    def _hear(self, said: Decision) -> None:
        what, name, *_ = said
        request = self.core.requests[name]
        tenant = request.tenant
        match what:
            case "granted":
                waited = self.where.get(name) == "waiting"
                if self.where.get(name) not in (None, "waiting"):
                    self.twice.append(name)
                if request.deadline_at <= self.core.now:
                    self.granted_late.append(name)
                self.where[name] = "running"
                self._count_grant(name, tenant, waited)
            case "queued":
                if self.where.get(name) is None:
                    self.where[name] = "waiting"
                    self._join(tenant)
            case "refused":
                if name in self.where:
                    self.twice.append(name)
                self.where[name] = "refused"
            case "expired" | "displaced":
                if self.where.get(name) != "waiting":
                    self.twice.append(name)
                self._end(name, "expired")
                self._leave(tenant)

    def _see_leases(self) -> None:
        for name, lease in self.core.leases.items():
            state = self.open.get(name)
            if lease.state is LeaseState.FREED:
                if state is not None:
                    del self.open[name]
                    self.freed[name] += 1
            elif name in self.freed:
                self.twice.append(name[0])
            else:
                self.open[name] = lease.state

    # --- service --------------------------------------------------------------------------------------------

    def _expect(self, amount: float) -> None:
        self.expected_charge += amount

    def _count_grant(self, name: str, tenant: str, waited: bool) -> None:
        request = self.core.requests[name]
        number = sum(1 for known in self.charge_of if known[0] == name)
        self.charge_of[name, number] = request.width
        self._expect(request.width)
        if waited:
            self._check_order(request)
            self.backlog[tenant] -= 1
        self.dispatched[tenant] += request.width
        step = request.width / self.weight(tenant)
        for (one, other), pair in self.pairs.items():
            if tenant in (one, other):
                pair.now += step if tenant == one else -step
                pair.most = max(pair.most, pair.now)
                pair.least = min(pair.least, pair.now)
        for head in self.heads.values():
            if self.tenant_of(head.name) != tenant:
                head.passed[tenant] += 1
        if self.backlog[tenant] <= 0 or not self.eligible(tenant):
            self._part(tenant)

    def _check_order(self, granted: Request) -> None:
        """Within a tenant: arrival + class offset (D6)."""
        if not self.plain:
            return
        for other in self.waiting():
            if (
                other is not granted
                and other.tenant == granted.tenant
                and self.where.get(other.id) == "waiting"
            ):
                mine = granted.arrived_at + granted.class_offset_s
                if other.arrived_at + other.class_offset_s < mine:
                    self.out_of_order.append((granted.id, other.id))

    def _join(self, tenant: str) -> None:
        self.backlog[tenant] += 1

    def _leave(self, tenant: str) -> None:
        self.backlog[tenant] -= 1
        if self.backlog[tenant] <= 0:
            self._part(tenant)

    def _part(self, tenant: str) -> None:
        for pair in [pair for pair in self.pairs if tenant in pair]:
            del self.pairs[pair]
        self.heads.pop(tenant, None)

    def _see_service(self, step: Step) -> None:
        core, state = self.core, self.core.admission._state
        keeping = {
            request: (item.since, request.width)
            for pool in state.pools
            for request, item in pool.collecting.items()
        }
        for request, (since, width) in self.keeping.items():
            if keeping.get(request) != (since, width):
                self._expect((core.now - since) * width / SERVICE_S)
                if step[0] == "cancel" and step[1] == request.id:
                    self._expect(width)  # it has kept slots from others, and got nothing for it
        self.keeping = keeping
        self.previous_virtual = self.virtual
        self.virtual = {number: pool.queue.v for number, pool in enumerate(state.pools)}
        if not self.comparable:
            return
        if not self.waiting() and not self.open:
            self.plain = True
            self.pairs.clear()
            self.heads.clear()
        ready = [t for t, waits in self.backlog.items() if waits > 0 and self.eligible(t)]
        for tenant in {*self.heads, *(name for pair in self.pairs for name in pair)} - set(ready):
            self._part(tenant)
        if not self.plain:
            self.pairs.clear()
            self.heads.clear()
            return
        services = self.services()
        for index, one in enumerate(ready):
            if one not in self.heads and services.get(one, 0) < self.virtual[0]:
                self.unlifted.append((one, self.virtual[0] - services.get(one, 0)))
            for other in ready[index + 1 :]:
                key = (one, other) if one < other else (other, one)
                if key not in self.pairs:
                    self.pairs[key] = Pair(0.0, 0.0, 0.0, 0.0)
            first = min(
                (r for r in self.waiting() if r.tenant == one), key=lambda r: (r._order, r._seq), default=None
            )
            if first is not None and (one not in self.heads or self.heads[one].name != first.id):
                allowance = (services[one] - self.virtual[0]) / SCALE
                self.heads[one] = Head(first.id, allowance, Counter())

    def services(self) -> dict[str, int]:
        """F by tenant, of the first pool."""
        queue = self.core.admission._state.pools[0].queue
        return {tenant.name: flow.service for tenant, flow in queue.flows.items()}

    # --- refusals -------------------------------------------------------------------------------------------

    def _see_refusals(self, step: Step) -> None:
        refused = [effect for effect in self.core.effects if isinstance(effect, Refused)]
        self.refusals = refused
        told = [e for e in self.core.effects if isinstance(e, Refused | Expired | Displaced)]
        quiet = any(until > self.core.now for until in self.quiet_until.values())  # then nobody is told less
        if (
            step[0] == "offer"
            and not quiet
            and len(told) == len(refused) == 1
            and refused[0].refusal.code in WOULD_WAIT
        ):
            request = refused[0].request
            apart = self.core.admission._state.models[request.model].prospects
            own = request.class_name if request.class_name in apart else ""
            self.advice.append((request.tenant, request.model, own, refused[0].refusal.retry_after_s))
        else:
            self.advice.clear()
