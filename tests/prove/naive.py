"""What the oracle keeps: plain lists of servers, tenants, requests and leases, and scans over all of them.

Service is counted in whole billionths of a slot by weight, as the core does it, so that ties are ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from inferencemesh.core.model import ModelSpec
from tests.prove.steps import Decision, LeaseName, Setting

NEVER = float("inf")
BILLION = 1_000_000_000

# Pool, model, width, backends avoided, and class where that has a limit or a rank.
Kind = tuple[int, str, int, frozenset[str], str | None]


@dataclass(slots=True, eq=False)
class Server:
    """A backend."""

    name: str
    slots: int
    weight: float
    running: int = 0
    draining: int = 0
    up: bool = True
    cordoned: bool = False
    proven: int | None = None  # after “full” (B6)
    resume_at: float | None = None
    quiet_until: float | None = None
    backoff: float = 0.0
    full_at: float = -NEVER
    kept_for: Wish | None = None

    @property
    def held(self) -> int:
        return self.running + self.draining

    @property
    def capacity(self) -> int:
        """After “full”: what was proven, and one more once the back-off is over."""
        if self.proven is None:
            return self.slots
        return min(self.slots, self.proven + (self.resume_at is None))

    @property
    def usable(self) -> bool:
        return self.up and not self.cordoned and self.slots > 0

    @property
    def open(self) -> int:
        if not self.up or self.cordoned or self.quiet_until is not None:
            return 0
        return max(0, self.capacity - self.held)


@dataclass(slots=True, eq=False)
class User:
    """A tenant."""

    name: str
    weight: float = 1.0
    cap: int | None = None
    places: int | None = None
    reserved: int = 0
    service: dict[int, int] = field(default_factory=dict)  # F by pool
    offsets: dict[Kind, int] = field(
        default_factory=dict
    )  # what waits of a kind stands so much before or behind F
    waits_for: Wish | None = None  # its turn had come, and its own limit leaves too little room for it
    out: bool = False  # not eligible: at its limit, or waiting for room for that one

    def cost(self, units: float) -> int:
        return round(units * round(BILLION / self.weight))


@dataclass(slots=True, eq=False)
class Klass:
    """A class of requests."""

    name: str
    cap: int | None
    band: int  # the lower comes first, where classes are strict
    waits_for: Wish | None = None  # its turn had come, and the limit leaves too little room for it


@dataclass(slots=True, eq=False)
class Wish:
    """A request."""

    name: str
    user: User
    model: str
    width: int
    size: int
    offset: float
    arrived: float
    deadline: float
    klass: Klass
    number: int = 0
    state: str = "new"  # waiting | collecting | resting | running | over
    order: float = 0.0
    exempt: bool = False
    avoid: frozenset[str] = frozenset()
    left: float = 0.0  # of the queue timeout
    since: float = 0.0
    until: float = NEVER
    kept: Server | None = None  # where it collects; since when, from which F on, and how often it has
    kept_since: float = 0.0
    key: int = 0
    collects: int = 0
    alarm: float | None = None  # when it stops resting, or gives up collecting
    charged: float = 0.0  # while it collects, in the unit of the charge
    fulls: int = 0
    grants: int = 0
    hold: Hold | None = None


@dataclass(slots=True, eq=False)
class Hold:
    """A lease."""

    wish: Wish
    server: Server
    state: str  # running | draining | freed
    at: float
    level: int
    charged: float  # so far, in the unit of the charge


class World:
    """All of them, and every question about them that a decision asks."""

    def __init__(self, setting: Setting) -> None:
        self.limits = setting.limits
        self.unit = setting.charge
        self.floor = setting.floor
        self.klasses = {
            spec.name: Klass(spec.name, spec.max_running, 0 if setting.floor is None else band)
            for band, spec in enumerate(setting.classes)
        }
        self.klasses.setdefault("", Klass("", None, 0))
        self.earned: dict[int, float] = {}  # by band, turns
        self.lifts = setting.charge in ("requests", "slot_seconds")
        # Classes that have a limit or a rank may be served more slowly than others, and lag behind V.
        self.limited = {
            name for name, klass in self.klasses.items() if name and (klass.cap or setting.floor is not None)
        }
        self.lags = self.lifts and bool(self.limited)
        self.now = 0.0
        self.servers = {s.name: Server(s.name, s.slots, s.weight) for s in setting.backends}
        self.models = {m.name: m for m in setting.models}
        self.users = {
            t.name: User(t.name, t.weight, t.max_running, t.max_waiting, t.reserved) for t in setting.tenants
        }
        self.turn = dict.fromkeys(self.models, 0)  # where a tie among a model's backends starts
        self.pool = pools(setting)  # by model
        self.virtual = dict.fromkeys(sorted(set(self.pool.values())), 0)  # V by pool
        self.wishes: dict[str, Wish] = {}
        self.holds: dict[LeaseName, Hold] = {}
        self.waiters: list[Wish] = []  # in the order in which they entered, or went back to, the line
        self.collectors: list[Wish] = []  # in the order of their turns
        self.numbers = 0
        self.said: list[Decision] = []
        self.displaced: list[str] = []  # by the core, in this step, and not yet by us
        self.refused: dict[str, str] = {}  # by the core, in this step, and why

    # --- who waits ------------------------------------------------------------------------------------------

    def in_line(self, pool: int) -> list[Wish]:
        """Who stands in the fair line: neither collecting nor resting."""
        return [w for w in self.waiters if w.state == "waiting" and self.pool[w.model] == pool]

    def amounts(self, amount: Callable[[Wish], int], within: str | None = None) -> dict[User, int]:
        """By tenant, what its displaceable waiters take up."""
        result: dict[User, int] = {}
        for wish in self.waiters:
            if not wish.exempt and within in (None, wish.model) and amount(wish):
                result[wish.user] = result.get(wish.user, 0) + amount(wish)
        return result

    def most(self, amounts: dict[User, int]) -> list[User]:
        """The tenants with the most by weight. Who of several is open (the core prefers who had more service)."""
        most = max(amount / user.weight for user, amount in amounts.items())
        return [user for user, amount in amounts.items() if amount / user.weight == most]

    def newest(self, user: User, within: str | None) -> Wish:
        mine = [w for w in self.waiters if w.user is user and not w.exempt]
        return max((w for w in mine if within in (None, w.model)), key=lambda w: w.number)

    def bytes_waiting(self) -> int:
        return sum(wish.size for wish in self.waiters)

    # --- who holds ------------------------------------------------------------------------------------------

    def held_by(self, user: User) -> int:
        """Running, draining, or being collected: what counts against a tenant's limit."""
        mine = [hold for hold in self.holds.values() if hold.state != "freed" and hold.wish.user is user]
        return sum(h.wish.width for h in mine) + sum(w.width for w in self.collectors if w.user is user)

    def held_by_all(self) -> int:
        return sum(s.held for s in self.servers.values()) + sum(w.width for w in self.collectors)

    def has_room(self, user: User, width: int) -> bool:
        return user.cap is None or self.held_by(user) + width <= user.cap

    def held_by_class(self, klass: Klass) -> int:
        mine = [hold for hold in self.holds.values() if hold.state != "freed" and hold.wish.klass is klass]
        return sum(h.wish.width for h in mine) + sum(w.width for w in self.collectors if w.klass is klass)

    def class_has_room(self, klass: Klass, width: int) -> bool:
        return klass.cap is None or self.held_by_class(klass) + width <= klass.cap

    def admits(self, klass: Klass) -> bool:
        if klass.cap is None:
            return True
        first = klass.waits_for  # holds the others up as long as it could be served
        servers = [self.servers[name] for name in self.models[first.model].backends] if first else []
        could = first is not None and first.state == "waiting" and not first.user.out
        closed = could and any(s.usable and s.capacity >= (first.width if first else 0) for s in servers)
        return not closed and self.held_by_class(klass) < klass.cap

    # --- who is served --------------------------------------------------------------------------------------

    def lifted(self, wish: Wish) -> int:
        """F of a tenant that waits, or that it would have if it came now: idleness buys nothing."""
        pool = self.pool[wish.model]
        mine = wish.user.service.get(pool, 0)
        if not self.lifts:
            return mine
        for other in self.in_line(pool):
            open_to = other.klass is wish.klass or self.admits(other.klass)
            alike = not self.lags or self.same_backends(other, wish)
            if other.user is wish.user and open_to and other.klass.band <= wish.klass.band and alike:
                return mine
        return max(mine, self.virtual[pool])

    def same_backends(self, one: Wish, other: Wish) -> bool:
        return set(self.models[one.model].backends) == set(self.models[other.model].backends)

    def kind(self, wish: Wish) -> Kind:
        klass = wish.klass.name if wish.klass.name in self.limited else None
        return self.pool[wish.model], wish.model, wish.width, wish.avoid, klass

    def place(self, wish: Wish) -> int:
        """Where it stands in the order of service: F, and what its kind lags behind V."""
        return wish.user.service[self.pool[wish.model]] + wish.user.offsets.get(self.kind(wish), 0)

    def level(self, wish: Wish) -> int:
        """Where newcomers of its kind stand: at V, or beside those who want the same and lag behind it."""
        pool = self.pool[wish.model]
        klass = self.kind(wish)[-1]
        lagging = [
            self.place(other)
            for other in self.in_line(pool)
            if self.lags
            and not other.user.out
            and self.kind(other)[-1] == klass
            and self.same_backends(other, wish)
            and other.width <= wish.width
            and other.avoid <= wish.avoid
        ]
        return min([self.virtual[pool], *lagging])

    def offset(self, wish: Wish) -> int:
        """That of its kind, or what it would be if it came now, its tenant having been lifted."""
        kind = self.kind(wish)
        pool = kind[0]
        if any(other.user is wish.user and self.kind(other) == kind for other in self.in_line(pool)):
            return wish.user.offsets.get(kind, 0)
        return self._offset(wish, self.lifted(wish)) if self.lags else 0

    def _offset(self, wish: Wish, service: int) -> int:
        virtual = self.virtual[self.pool[wish.model]]
        return self.level(wish) - min(service, virtual)

    def if_it_came(self, wish: Wish) -> int:
        """Its place in the order of service, or the one that it would have if it came now."""
        return self.lifted(wish) + self.offset(wish)

    def fits(self, wish: Wish) -> Server | None:
        """The backend that takes it now: the least busy by our own count, ties in turn."""
        spec = self.models[wish.model]
        start = self.turn[wish.model]
        names = spec.backends[start:] + spec.backends[:start]
        free = [s for s in self._allowed(wish, names) if s.open >= wish.width and s.kept_for is None]
        if not free:
            return None
        if spec.routing == "round_robin":
            return free[0]
        return min(free, key=lambda s: s.held / (s.capacity * s.weight))

    def collects_at(self, wish: Wish) -> Server | None:
        """A13: where a wide request may keep what comes free: one free slot now, room for it some day."""
        servers = [
            s
            for s in self._allowed(wish, self.models[wish.model].backends)
            if wish.width > 1 and s.open > 0 and s.kept_for is None and s.capacity >= wish.width
        ]
        return max(servers, key=lambda s: s.open, default=None)

    def _allowed(self, wish: Wish, names: tuple[str, ...]) -> list[Server]:
        """Backends that failed it are left out, unless they are all there is."""
        servers = [self.servers[name] for name in names]
        others = [server for server in servers if server.name not in wish.avoid]
        return others if any(server.usable for server in others) else servers

    def whose_turn(self, pool: int) -> Wish | None:
        """Of the heads the least (place, arrival); first of all those that are within their tenants' reserve."""
        heads = self.reserved_heads(pool) or self.heads(pool)
        return min(heads, key=lambda w: (self.place(w), w.number), default=None)

    def reserved_heads(self, pool: int) -> list[Wish]:
        """Whatever their class: a reserve is outside of the bands."""
        heads = self._heads(pool, None)
        return [head for head in heads if self.comes_first(head.user, head.width)]

    def comes_first(self, user: User, width: int) -> bool:
        return self.held_by(user) + width <= user.reserved

    def heads(self, pool: int) -> list[Wish]:
        """Of each eligible tenant the first waiter that could be served (D1), in the band whose turn it is (D6)."""
        offered = self.offered(pool)
        if not offered:
            return []
        turn = min(offered)
        if self.floor is not None:
            enough = 1.0 - self.floor - 1e-9
            late = [band for band in offered if band != turn and self.earned.get(band, 0.0) >= enough]
            turn = max(late, key=lambda band: (self.earned.get(band, 0.0), -band), default=turn)
        return offered[turn]

    def took(self, wish: Wish) -> None:
        """Those that could have been served have earned a part of a turn."""
        floor = self.floor or 0.0
        for band in self.offered(self.pool[wish.model]):
            earned = self.earned.get(band, 0.0) + floor
            self.earned[band] = max(0.0, earned - 1.0) if band == wish.klass.band else earned

    def offered(self, pool: int) -> dict[int, list[Wish]]:
        """By band, the heads of the tenants."""
        bands: dict[int, list[Wish]] = {}
        for band in {klass.band for klass in self.klasses.values()}:
            heads = self._heads(pool, band)
            if heads:
                bands[band] = heads
        return bands

    def _heads(self, pool: int, band: int | None) -> list[Wish]:
        """Of each tenant the first in its own order; of those for other backends only where they stand elsewhere."""
        heads: list[Wish] = []
        for wish in self.servable(pool):
            if band in (None, wish.klass.band) and not any(
                head.user is wish.user
                and (self.same_backends(head, wish) or self.place(head) == self.place(wish))
                for head in heads
            ):
                heads.append(wish)
        return heads

    def servable(self, pool: int) -> list[Wish]:
        """Who could be served now, if it were its turn; in the order within each tenant."""
        return [
            wish
            for wish in sorted(self.in_line(pool), key=lambda wish: (wish.order, wish.number))
            if not wish.user.out and self.admits(wish.klass) and (self.fits(wish) or self.collects_at(wish))
        ]

    # --- who may come in ------------------------------------------------------------------------------------

    def judge(self, wish: Wish) -> tuple[str | None, Wish | None, bool]:
        """Refusal code, who gives way to it, whether others must give way for its bytes. The widest bound is named."""
        user, limits = wish.user, self.limits
        spec = self.models[wish.model]
        here = [other for other in self.waiters if other.model == wish.model]
        own_full = self._own_full(user, spec)
        assert spec.max_waiting is not None
        if len(here) < spec.max_waiting and len(self.waiters) < limits.max_waiting_total:
            return self._judge_bytes(wish, None, own_full=own_full)
        within = wish.model if len(here) >= spec.max_waiting else None
        bound = spec.max_waiting if within else limits.max_waiting_total
        verdicts: list[tuple[str | None, Wish | None, bool]] = [
            ("queue_full", None, False) if victim is None else self._judge_bytes(wish, victim, own_full=False)
            for victim in ([None] if own_full else self._give_way(wish, bound, within))
        ]
        return next((verdict for verdict in verdicts if self._is_the_cores(wish, verdict)), verdicts[0])

    def _is_the_cores(self, wish: Wish, verdict: tuple[str | None, Wish | None, bool]) -> bool:
        code, victim, _ = verdict
        if victim is not None:
            return victim.name in self.displaced[:1]
        return code is not None and self.refused.get(wish.name) == code

    def _judge_bytes(
        self, wish: Wish, victim: Wish | None, *, own_full: bool
    ) -> tuple[str | None, Wish | None, bool]:
        limits = self.limits
        excess = self.bytes_waiting() + wish.size - limits.max_waiting_bytes - (victim.size if victim else 0)
        if excess > 0 and (own_full or not self._within_share_of_bytes(wish)):
            return "queue_bytes_full", None, False
        if own_full:
            return "tenant_queue_full", None, False
        return None, victim, excess > 0

    def _own_full(self, user: User, spec: ModelSpec) -> bool:
        mine = [other for other in self.waiters if other.user is user]
        here = [other for other in mine if other.model == spec.name]
        own = spec.max_waiting_per_tenant
        return (user.places is not None and len(mine) >= user.places) or (
            own is not None and len(here) >= own
        )

    def _within_share_of_bytes(self, wish: Wish) -> bool:
        amounts = self.amounts(lambda w: w.size)
        room = self.limits.max_waiting_bytes - sum(other.size for other in self.waiters if other.exempt)
        due = room / _weights(amounts, wish.user) * wish.user.weight
        return room > 0 and amounts.get(wish.user, 0) + wish.size <= due

    def _give_way(self, wish: Wish, limit: int, within: str | None) -> list[Wish | None]:
        """D8: the newest waiter of the tenant most above its share of places, for one that is below its own.

        One for each of the tenants that are equally above: which of them is looked at is open.
        """
        user = wish.user
        places = self.amounts(lambda w: 1, within)
        if not places:
            return [None]
        due = limit / _weights(places, user)
        if places.get(user, 0) >= due * user.weight and not self.within_reserve(user, wish.width):
            return [None]
        rivals = {rival: amount for rival, amount in places.items() if not self.within_reserve(rival)}
        if not rivals:
            return [None]
        return [self._victim(wish, rival, places, due, within) for rival in self.most(rivals)]

    def within_reserve(self, user: User, more: int = 0) -> bool:
        """Whether all that it holds and waits for, and so many slots more, are within what is reserved for it."""
        waiting = sum(1 for other in self.waiters if other.user is user)
        return 0 < user.reserved >= self.held_by(user) + waiting + more

    def _victim(
        self, wish: Wish, rival: User, places: dict[User, int], due: float, within: str | None
    ) -> Wish | None:
        """Who of `rival` gives way to `wish`."""
        user = wish.user
        if rival is user:
            return None
        victim = self.newest(rival, within)
        if self.within_reserve(user, wish.width):
            return victim
        if places[rival] <= due * rival.weight:
            return None
        if places[rival] / rival.weight <= (places.get(user, 0) + 1) / user.weight:
            # It would only turn the unfairness round: for somebody who is before it in the order of service.
            pool = self.pool[wish.model]
            if victim.state == "collecting" or self.pool[victim.model] != pool:
                return None
            if self.if_it_came(wish) >= self.place(victim):
                return None
        return victim


def _weights(amounts: dict[User, int], user: User) -> float:
    return sum(other.weight for other in amounts) + (user.weight if user not in amounts else 0.0)


def pools(setting: Setting) -> dict[str, int]:
    """Models that share backends share one fair line; so do all, under a bound over all backends."""
    numbers = {model.name: number for number, model in enumerate(setting.models)}
    for _ in setting.models:
        for one in setting.models:
            for other in setting.models:
                if setting.limits.max_running is not None or set(one.backends) & set(other.backends):
                    numbers[other.name] = min(numbers[one.name], numbers[other.name])
    return numbers
