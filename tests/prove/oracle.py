"""Admission once more, written naively from the contract: lists, sorted scans, no heaps, nothing remembered twice.

It takes the steps of `steps` and must decide the same as the core: who is granted, and where; who is refused,
with which code; who gives way to whom; who expires; in which order. Each decision looks at everything there is,
O(n). Flows are never dropped here, so it also shows that the core's forgetting of idle tenants changes nothing.

What it leaves out, because it depends on measured speeds or chance: `max_waiting: auto`, refusals for a hopeless
deadline, breakers, and the offsets of models that share only some of their backends. The mean service time,
which patience and the price of collecting depend on, is a constant on both sides.
"""

from __future__ import annotations

from tests.prove.naive import Hold, Server, User, Wish, World
from tests.prove.steps import CAP_S, SERVICE_S, Decision, Setting, Step

BACKOFF_S, BACKOFF_MAX_S = 0.25, 5.0
PATIENCE_S = max(1.0, 2.0 * SERVICE_S)
REQUEUED = 1e9


class Oracle(World):
    """The model. `do` a step; it returns the decisions in order."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.closed = False
        self.late: set[str] = set()
        for user in self.users.values():
            self._look(user)

    def do(self, step: Step, core: list[Decision] | None = None) -> list[Decision]:
        """Make a step.

        Two choices of the core are taken from its decisions, since they are open: when between its deadline
        and the next `expire` a waiter is noticed to be late (it must not start meanwhile); and who gives its
        place of those who are equal in everything.
        """
        self.said = []
        late = {said[1] for said in core or () if said[0] == "expired"}
        self.displaced = [said[1] for said in core or () if said[0] == "displaced"]
        self.refused = {said[1]: said[2] for said in core or () if said[0] == "refused"}
        self.late = {name for name in late if self.wishes[name].deadline <= self.now}
        kind, *arguments = step
        if kind not in ("pass", "close", "cancel"):
            self._elapse()
        getattr(self, "_" + kind)(*arguments)
        return self.said

    def wake_at(self) -> float | None:
        """When `expire` is due."""
        times = [at for wish in self.waiters for at in (wish.until, wish.alarm) if at is not None]
        for server in self.servers.values():
            times += [at for at in (server.resume_at, server.quiet_until) if at is not None]
        return min(times, default=None)

    # --- steps ----------------------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def _close(self) -> None:
        self.closed = True

    def _offer(
        self,
        name: str,
        tenant: str,
        model: str,
        width: int,
        size: int,
        offset: float,
        ttl: float,
        klass: str,
    ) -> None:
        user = self.users.get(tenant) or self.users.setdefault(tenant, User(tenant))
        wish = Wish(name, user, model, width, size, offset, self.now, self.now + ttl, self.klasses[klass])
        wish.order = wish.arrived + offset
        self.wishes[name] = wish
        spec = self.models[model]
        servers = [self.servers[name] for name in spec.backends]
        widest = max(server.slots for server in servers)
        code = None
        if self.closed:
            code = "shutting_down"
        elif width > 1 and width > min(
            widest, *(b for b in (user.cap, wish.klass.cap, self.limits.max_running, width) if b)
        ):
            code = "invalid_request"
        elif not any(server.up and not server.cordoned for server in servers):
            code = "no_backend"
        elif wish.deadline <= self.now:
            code = "deadline_exceeded"
        if code is not None:
            return self._refuse(wish, code)
        wish.left = spec.queue_timeout_s
        self._make_way(wish)
        server = self.fits(wish)
        if server is not None and self._may_start(wish):
            self._accept(wish)
            self._lift(wish)
            self._charge(wish, self.if_it_came(wish))
            self._follow(wish)
            self._grant(wish, server)
            return self._serve()
        code, victim, more = self.judge(wish)
        if code:
            self._refuse(wish, code)
            return self._serve()
        if victim is not None:
            self._displace(victim)
        while more and self.bytes_waiting() + size > self.limits.max_waiting_bytes:
            victims = [self.newest(rival, None) for rival in self.most(self.amounts(lambda w: w.size))]
            self._displace(next((v for v in victims if v.name in self.displaced[:1]), victims[0]))
        self._accept(wish)
        self._enter(wish)
        return self._serve_entered(wish)

    def _cancel(self, name: str) -> None:
        self._withdraw(self.wishes[name], refund=False)  # if it has kept slots from others, it pays for that
        self._elapse()
        self._serve()

    def _expire(self) -> None:
        due = [wish for wish in self.waiters if wish.until <= self.now]
        for wish in sorted(due, key=lambda wish: (wish.until, wish.number)):
            self._lapse(wish)
        self._serve()

    def _release(self, name: str, number: int) -> None:
        hold = self.holds[name, number]
        if hold.state != "freed":
            self._free(hold)
            self._serve()

    _confirm = _release

    def _drain(self, name: str, number: int) -> None:
        hold = self.holds[name, number]
        if hold.state == "running":
            hold.state = "draining"
            hold.server.running -= hold.wish.width
            hold.server.draining += hold.wish.width

    def _started(self, name: str, number: int) -> None:
        hold = self.holds[name, number]
        if hold.state == "running":
            self._proved(hold)
            self._serve()

    def _settle(self, name: str, ok: bool) -> None:
        wish = self.wishes[name]
        assert wish.hold is not None
        wish.state = "over"
        if ok:
            self._proved(wish.hold)
        self._serve()

    def _requeue(self, name: str, full: bool, avoid: bool, not_before: float) -> None:
        wish = self.wishes[name]
        hold = wish.hold
        assert hold is not None
        server = hold.server
        if hold.state == "running":
            self._free(hold, undone=full or self.unit in ("requests", "fifo"))
        elif self.unit == "requests" or (self.unit == "slot_seconds" and hold.state == "freed" and full):
            self._correct(wish, -hold.charged)
            hold.charged = 0.0
        if full:
            wish.fulls += 1
            self._said_full(hold, not_before)
        if not_before > 0:
            server.quiet_until = max(server.quiet_until or 0.0, self.now + not_before)
        if avoid:
            wish.avoid |= {server.name}
        wish.order = wish.arrived + wish.offset - REQUEUED
        wish.exempt = True
        self._enter(wish)
        self._recheck(server)
        if wish.until <= self.now:
            self._lapse(wish)
            return self._serve()
        usable = sum(self.servers[name].usable for name in self.models[wish.model].backends)
        if full and wish.fulls >= usable:  # every backend has sent it back: the next probes belong to others
            wish.state = "resting"
            wish.alarm = self.now + min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** (wish.fulls - usable))
            self._look(wish.user)
            self._rest(self.pool[wish.model])
        return self._serve_entered(wish)

    def _resize(self, name: str, slots: int) -> None:
        server = self.servers[name]
        server.slots = slots
        if server.proven is not None and server.proven >= slots:
            server.proven = server.resume_at = None
        self._recheck(server)
        self._serve()

    def _up(self, name: str, up: bool) -> None:
        self.servers[name].up = up
        self._recheck(self.servers[name])
        self._serve()

    def _cordon(self, name: str, on: bool) -> None:
        self.servers[name].cordoned = on
        self._recheck(self.servers[name])
        self._serve()

    def _elapse(self) -> None:
        """What time alone has changed by now."""
        if self.unit == "slot_seconds":
            for hold in self.holds.values():
                held = (self.now - hold.at) * hold.wish.width
                if hold.state != "freed" and held > hold.charged:
                    total = hold.charged
                    while total < held:
                        total += CAP_S / 2 * hold.wish.width
                    self._correct(hold.wish, total - hold.charged)
                    hold.charged = total
        due = [wish for wish in self.waiters if wish.alarm is not None and wish.alarm <= self.now]
        for wish in sorted(due, key=lambda wish: (wish.alarm or 0.0, wish.number)):
            if wish.state == "resting":
                wish.alarm = None
                self._lift(wish)
                wish.state = "waiting"
                self._came_first(wish)
            else:
                wish.collects += 1
                self._back_to_the_line(wish)
        if due:
            self._serve()
        changed = []
        for server in self.servers.values():
            if server.resume_at is not None and server.resume_at <= self.now:
                server.resume_at = None
                changed.append(server)
            if server.quiet_until is not None and server.quiet_until <= self.now:
                server.quiet_until = None
                changed.append(server)
        for server in changed:
            self._recheck(server)
        if changed:
            self._serve()

    # --- who comes in ---------------------------------------------------------------------------------------

    def _may_start(self, wish: Wish) -> bool:
        """Whether a newcomer that fits may start at once: its own limit, and the bound over all backends."""
        user = wish.user
        first = (
            user.waits_for
        )  # it is not overtaken by its own tenant's (A13), but for those of a better class
        if (first is not None and first.order <= wish.order) or not self.has_room(user, wish.width):
            return False
        if not (self.admits(wish.klass) and self.class_has_room(wish.klass, wish.width)):
            return False
        most = self.limits.max_running
        if most is None:
            return True
        return self.held_by_all() + wish.width <= most and self.whose_turn(self.pool[wish.model]) is None

    def _make_way(self, wish: Wish) -> None:
        """A collector whose turn comes after a newcomer's does not keep slots from it."""
        pool = self.pool[wish.model]
        mine = self.if_it_came(wish)
        for other in list(self.collectors):
            server = other.kept
            assert server is not None
            stranger = other.user is not wish.user and self.pool[other.model] == pool
            first, second = self.comes_first(wish.user, wish.width), self.comes_first(other.user, 0)
            before = first if first != second else mine < other.key
            if wish.klass.band != other.klass.band:
                before = wish.klass.band < other.klass.band
            if stranger and before and server.name in self.models[wish.model].backends:
                self._back_to_the_line(other)

    def _accept(self, wish: Wish) -> None:
        self.numbers += 1
        wish.number = self.numbers

    def _refuse(self, wish: Wish, code: str) -> None:
        wish.state = "over"
        self.said.append(("refused", wish.name, code))

    def _enter(self, wish: Wish) -> None:
        self._stand(wish)
        wish.since = self.now
        wish.until = min(wish.deadline, self.now + wish.left)
        self.waiters.append(wish)
        self._came_first(wish)

    def _came_first(self, wish: Wish) -> None:
        """Whoever comes before the one that its tenant waits for is looked at first."""
        first = wish.user.waits_for
        if first is not None and (wish.order, wish.number) < (first.order, first.number):
            wish.user.waits_for = None
            self._look(wish.user)

    # --- who leaves -----------------------------------------------------------------------------------------

    def _withdraw(self, wish: Wish, *, refund: bool) -> None:
        self.waiters.remove(wish)
        if wish.state == "collecting":
            self._stop_collecting(wish, refund=refund or self.unit in ("slots", "slot_seconds"))
        wish.state = "over"
        if wish.klass.waits_for is wish:
            wish.klass.waits_for = None
        self._look(wish.user)
        self._rest(self.pool[wish.model])

    def _displace(self, wish: Wish) -> None:
        self._withdraw(wish, refund=True)
        self.displaced = self.displaced[1:]
        self.said.append(("displaced", wish.name))

    def _lapse(self, wish: Wish) -> None:
        self._withdraw(wish, refund=True)
        code = "deadline_exceeded" if wish.deadline <= self.now else "queue_timeout"
        self.said.append(("expired", wish.name, code))

    # --- collecting -----------------------------------------------------------------------------------------

    def _collect(self, wish: Wish, server: Server, key: int) -> None:
        """One backend gives nothing to anybody else; V does not follow before the grant."""
        wish.state = "collecting"
        self.collectors.append(wish)
        self._charge(wish, key)
        server.kept_for = wish
        wish.kept = server
        wish.kept_since = self.now
        wish.alarm = self.now + PATIENCE_S * 2.0**wish.collects
        self._look(wish.user)

    def _stop_collecting(self, wish: Wish, *, refund: bool) -> None:
        """What was kept from others is paid for, by the requests that it could have served."""
        assert wish.kept is not None
        self.collectors.remove(wish)
        wish.kept.kept_for = None
        wish.kept = None
        wish.alarm = None
        self._look_at_class(wish)
        idle = (self.now - wish.kept_since) * wish.width
        price = {"requests": idle / SERVICE_S, "slot_seconds": idle}.get(self.unit, 0.0)
        self._correct(wish, price - (wish.charged if refund else 0.0))

    def _back_to_the_line(self, wish: Wish) -> None:
        self._stand(wish)
        self._stop_collecting(wish, refund=True)
        self._came_first(wish)
        self._look(wish.user)

    def _recheck(self, server: Server) -> None:
        """Nobody collects where it can never fit."""
        wish = server.kept_for
        if wish is not None and not (server.usable and server.capacity >= wish.width):
            self._back_to_the_line(wish)

    # --- slots ----------------------------------------------------------------------------------------------

    def _grant(self, wish: Wish, server: Server) -> None:
        server.running += wish.width
        wish.hold = self.holds[wish.name, wish.grants] = Hold(
            wish, server, "running", self.now, server.held, wish.charged
        )
        wish.grants += 1
        wish.state = "running"
        names = self.models[wish.model].backends
        self.turn[wish.model] = (names.index(server.name) + 1) % len(names)
        self.said.append(("granted", wish.name, server.name))
        self._look(wish.user)

    def _free(self, hold: Hold, *, undone: bool = False) -> None:
        if hold.state == "running":
            hold.server.running -= hold.wish.width
        else:
            hold.server.draining -= hold.wish.width
        hold.state = "freed"
        self._look_at_class(hold.wish)
        cost = hold.charged
        if undone or self.unit == "slots":
            cost = 0.0
        elif self.unit == "slot_seconds":
            cost = max(0.25, self.now - hold.at) * hold.wish.width
        if cost != hold.charged:
            self._correct(hold.wish, cost - hold.charged)
            hold.charged = cost
        self._look(hold.wish.user)
        self._rest(self.pool[hold.wish.model])

    def _said_full(self, hold: Hold, not_before: float) -> None:
        """B6: it has what is held there, and no more, for a while that doubles; one burst doubles it once."""
        server = hold.server
        held = server.held - (hold.wish.width if hold.state == "draining" else 0)
        proven = min(held, server.slots if server.proven is None else server.proven)
        server.proven = proven if proven < server.slots else None
        if hold.at > server.full_at:
            server.backoff = min(BACKOFF_MAX_S, server.backoff * 2) if server.backoff else BACKOFF_S
        server.full_at = self.now
        server.resume_at = max(server.resume_at or 0.0, self.now + max(server.backoff, not_before))
        hold.level = 0

    def _proved(self, hold: Hold) -> None:
        """A success beyond what was proven proves one more."""
        server = hold.server
        if server.proven is None or hold.level <= server.proven or hold.at <= server.full_at:
            return
        hold.level = 0
        server.backoff = 0.0
        server.proven += 1
        if server.proven >= server.slots:
            server.proven = server.resume_at = None
        self._recheck(server)

    # --- order of service -----------------------------------------------------------------------------------

    def _lift(self, wish: Wish) -> None:
        """Whoever begins to wait, or starts without waiting, is not behind V."""
        pool, user = self.pool[wish.model], wish.user
        before = user.service.get(pool, 0)
        user.service[pool] = self.lifted(wish)
        self._keep_places(user, pool, user.service[pool] - before)

    def _keep_places(self, user: User, pool: int, lifted: int) -> None:
        """Who is lifted is so where it begins to wait; what waits already for others' slots keeps its place."""
        if self.lags:
            for kind in user.offsets:
                if kind[0] == pool:
                    user.offsets[kind] -= lifted

    def _stand(self, wish: Wish) -> None:
        """It begins to wait."""
        self._lift(wish)
        kind = self.kind(wish)
        wish.user.offsets[kind] = self.offset(wish)
        wish.state = "waiting"

    def _charge(self, wish: Wish, key: int) -> None:
        wish.key = key
        each = {"requests": 1.0, "slots": 1.0, "slot_seconds": CAP_S / 2, "fifo": 0.0}[self.unit]
        wish.charged = each * wish.width
        self._correct(wish, wish.charged)

    def _correct(self, wish: Wish, amount: float) -> None:
        wish.user.service[self.pool[wish.model]] += wish.user.cost(amount)

    def _follow(self, wish: Wish) -> None:
        """V is not behind the start of what is in service."""
        pool = self.pool[wish.model]
        if self.lifts:
            self.virtual[pool] = max(self.virtual[pool], wish.key)
        self._forget(pool, wish.user)

    def _rest(self, pool: int) -> None:
        """The end of a busy period: V moves past everybody."""
        if not self._busy(pool) and self.lifts:
            served = [user.service.get(pool, 0) for user in self.users.values()]
            self.virtual[pool] = max(self.virtual[pool], *served)
        self._forget(pool)

    def _busy(self, pool: int) -> set[User]:
        waiting = {w.user for w in self.in_line(pool)}
        collecting = {w.user for w in self.collectors if self.pool[w.model] == pool}
        holding = {
            h.wish.user for h in self.holds.values() if h.state != "freed" and self.pool[h.wish.model] == pool
        }
        return waiting | collecting | holding

    def _forget(self, pool: int, *besides: User) -> None:
        """What V has passed while its tenant was idle says nothing any more, and can not be given back either."""
        busy = self._busy(pool) | set(besides)
        for wish in self.wishes.values():
            user = wish.user
            passed = user.service.get(pool, 0) <= self.virtual[pool]
            if passed and user not in busy and self.pool[wish.model] == pool and wish.hold is not None:
                wish.hold.charged = 0.0

    def _look_at_class(self, wish: Wish) -> None:
        first = wish.klass.waits_for
        if first is not None and self.class_has_room(wish.klass, first.width):
            wish.klass.waits_for = None

    def _look(self, user: User) -> None:
        """Notice who is no longer eligible, and lift who is so again."""
        if user.cap is None:
            return
        first = user.waits_for
        if first is not None and (first.state != "waiting" or self.has_room(user, first.width)):
            user.waits_for = None
        out = not self.has_room(user, 1) or user.waits_for is not None
        if user.out and not out:
            for pool in {self.pool[wish.model] for wish in self.waiters if wish.user is user}:
                mine = [wish for wish in self.in_line(pool) if wish.user is user]
                if mine:
                    before = user.service[pool]
                    user.service[pool] = max(before, self.virtual[pool] if self.lifts else 0)
                    self._keep_places(user, pool, user.service[pool] - before)
                for wish in mine if self.lags else ():
                    behind = self.level(wish) - self.place(wish)
                    user.offsets[self.kind(wish)] += max(0, behind)
        user.out = out

    # --- the loop -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """D2: as long as anybody can be served."""
        for wish in [wish for wish in self.waiters if wish.name in self.late]:
            self._lapse(wish)
        for pool in self.virtual:
            while self._serve_one(pool):
                pass

    def _serve_entered(self, wish: Wish) -> None:
        """Queued is only said of a request that this step does not grant."""
        at = len(self.said)
        self._serve()
        if wish in self.waiters:
            self.said.insert(at, ("queued", wish.name))

    def _serve_one(self, pool: int) -> bool:
        for wish in self.collectors:
            assert wish.kept is not None
            server = wish.kept if wish.kept.open >= wish.width else self.fits(wish)
            if self.pool[wish.model] == pool and server is not None and wish.deadline > self.now:
                self._stop_collecting(wish, refund=False)
                self._follow(wish)
                self._leave(wish)
                self._grant(wish, server)
                return True
        turn = self.whose_turn(pool)
        if turn is None or turn.deadline <= self.now:
            return False  # one that is late must not start, and nobody has noticed yet
        user, most = turn.user, self.limits.max_running
        if not self.has_room(user, turn.width):
            user.waits_for = turn
            self._look(user)
            return True
        if not self.class_has_room(turn.klass, turn.width):
            turn.klass.waits_for = turn
            return True
        if most is not None and self.held_by_all() + turn.width > most:
            return False  # its turn: nobody overtakes it
        key = self.place(turn)
        if self.reserved_heads(pool):  # V does not pass whose turn it would be
            key = min(key, *(self.place(wish) for wish in self.servable(pool)))
        else:
            self.took(turn)
        server = self.fits(turn)
        if server is None:
            keeper = self.collects_at(turn)
            assert keeper is not None
            self._collect(turn, keeper, key)
        else:
            self._charge(turn, key)
            self._follow(turn)
            self._leave(turn)
            self._grant(turn, server)
        return True

    def _leave(self, wish: Wish) -> None:
        self.waiters.remove(wish)
        wish.left -= self.now - wish.since
