"""Bugs to be planted, one at a time: where, what stands there, what it is replaced by, and the tests that must notice.

A mutation whose text is not found exactly once is out of date, and counts as a failure: the code has moved on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One planted bug; `path` is below src/inferencemesh, `tests` are arguments of pytest."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


ORACLE = ("tests/prove/test_oracle.py", "-k", "seeded")
FOUND = ("tests/prove/test_found.py",)
EXPLORE = ("tests/prove/test_explore.py",)
PROTOCOL = ("tests/core/test_protocol.py",)
GATE = ("tests/prove/test_gate_futures.py",)
OWNER = ("tests/prove/test_ownership.py",)
CHAT = ("tests/wire/test_chat.py",)
AWAITS = ("tests/runtime/test_injection.py", "-k", "await and leaves")
CALLS = ("tests/runtime/test_injection.py", "-k", "call_out and leaves")
METERED = ("tests/core/test_metered.py",)
CLASSES = ("tests/core/test_classes.py",)
TURNS = ("tests/prove/test_turns.py",)
BOUNDS = ("tests/prove/test_bounds.py", "-k", "D5")
CLAIMS = ("tests/core/test_claims.py",)
MISSING = ("tests/prove/test_missing.py",)

CORE = (
    Mutation(
        "a cancelled waiter keeps its place",
        "core/dispatch.py",
        "            self._leave_line(request, now)\n            if lane.flow.idle:",
        "            if lane.flow.idle:",
        EXPLORE,
    ),
    Mutation(
        "a request may be settled twice",
        "core/admission.py",
        "        if request.state is not RequestState.RUNNING or lease is None:\n"
        '            raise InvariantError(f"{request!r} is settled',
        '        if lease is None:\n            raise InvariantError(f"{request!r} is settled',
        PROTOCOL,
    ),
    Mutation(
        "a slot is freed twice",
        "core/admission.py",
        "        if lease.state is not LeaseState.FREED:\n            self._dispatch.free",
        "        if True:\n            self._dispatch.free",
        PROTOCOL,
    ),
    Mutation(
        "whoever begins to wait is not lifted to V",
        "core/standings.py",
        "if flow.service < v and not (flow.waiting and self._competes(flow, need.group, need.model)):",
        "if False:",
        ORACLE,
    ),
    Mutation(
        "whoever is back under its limit is not lifted to V",
        "core/standings.py",
        "        if flow.service < self.v:\n            short",
        "        if False:\n            short",
        FOUND,
    ),
    Mutation(
        "virtual time does not follow wide requests",
        "core/dispatch.py",
        "            pool.queue.follow(item.key)\n",
        "",
        FOUND,
    ),
    Mutation(
        "the line takes one too many",
        "core/entrance.py",
        "line_full = line.count >= limit",
        "line_full = line.count > limit",
        EXPLORE,
    ),
    Mutation(
        "what we end is free at once",
        "core/admission.py",
        "            self._dispatch.drain(lease, now)",
        "            self._dispatch.free(lease, now)",
        EXPLORE,
    ),
    Mutation(
        "grants are made and nobody is told",
        "core/admission.py",
        "            self._dispatch.free(lease, now)\n            self._dispatch.run(now, effects)\n",
        "            self._dispatch.free(lease, now)\n            self._dispatch.run(now, [])\n",
        EXPLORE,
    ),
    Mutation(
        "a freed slot wakes nobody",
        "core/moves.py",
        "            self._unpark(tenant)\n        self.mark(state.pool_of[lease.backend])",
        "            self._unpark(tenant)",
        EXPLORE,
    ),
    Mutation(
        "the end of a back-off wakes nobody",
        "core/admission.py",
        "        at = state.next_change_at\n",
        "        at = _NEVER\n",
        ORACLE,
    ),
    Mutation(
        "the tenant with the least gives its place",
        "core/entrance.py",
        "    rival = places.most(_within_reserve)\n    if rival is None or rival is tenant:",
        "    rival = min(places.amounts, key=lambda t: places.amounts[t] / t.weight, default=None)\n"
        "    if rival is None or rival is tenant:",
        ORACLE,
    ),
    Mutation(
        "an undone grant stays charged",
        "core/moves.py",
        "        if undone or state.charge.corrects:",
        "        if state.charge.corrects:",
        EXPLORE,
    ),
    Mutation(
        "what came back counts against the bound, and may be displaced",
        "core/admission.py",
        "        request._exempt = True",
        "        request._exempt = False",
        ORACLE,
    ),
    Mutation(
        "the queue timeout starts anew",
        "core/moves.py",
        "            request._wait_left_s -= waited\n",
        "",
        ORACLE,
    ),
    Mutation(
        "a waiter may start after its deadline",
        "core/dispatch.py",
        "        request = lane.head()\n        if request.deadline_at <= now:",
        "        request = lane.head()\n        if False:",
        ORACLE,
    ),
    Mutation(
        "slots kept for a wide request that left stay kept",
        "core/dispatch.py",
        "        del pool.collecting[request]\n        item.backend.reserved_for = None\n",
        "        del pool.collecting[request]\n",
        EXPLORE,
    ),
    Mutation(
        "slots kept for a wide request are given to others",
        "core/routing.py",
        "            return only if only.open >= width and only.reserved_for is None else None",
        "            return only if only.open >= width else None",
        EXPLORE,
    ),
    Mutation(
        "the believed capacity never shrinks",
        "core/slots.py",
        "        self.proven = min(held, self.slots if self.proven is None else self.proven)\n",
        "",
        EXPLORE,
    ),
    Mutation(
        "draining slots do not count for their tenant",
        "core/tenant.py",
        "        return self.running + self.draining + self.collecting",
        "        return self.running + self.collecting",
        ORACLE,
    ),
    Mutation(
        "classes do not order",
        "core/admission.py",
        "        request._order = request.arrived_at + request.class_offset_s\n",
        "        request._order = request.arrived_at\n",
        ORACLE,
    ),
    Mutation(
        "passing over a class is not counted",
        "core/dispatch.py",
        "        queue.took(need)\n        queue.remove(request)",
        "        queue.remove(request)",
        CLASSES,
    ),
    Mutation(
        "a class whose wide waiter has room stays closed",
        "core/group.py",
        "            self.waits_for = None",
        "            pass",
        ORACLE,
    ),
    Mutation(
        "a class's freed slots wake nobody in another pool",
        "core/moves.py",
        "            group.look()\n            for pool in self.state.pools:\n                self.mark(pool)",
        "            group.look()",
        FOUND,
    ),
    Mutation(
        "a start out of turn takes virtual time along",
        "core/fairqueue.py",
        "return key if self._least is None else min(key, self._least)",
        "return key",
        ORACLE,
    ),
    Mutation(
        "requests that end at once are free",
        "core/metered.py",
        "max(LEAST_S, held_s) * lease.width - charged",
        "held_s * lease.width - charged",
        ORACLE,
    ),
    Mutation(
        "nobody pays instalments",
        "core/moves.py",
        "                lease._flow.queue.correct(lease._flow, amount, lease.backend)\n            heappush",
        "                pass\n            heappush",
        METERED,
    ),
    Mutation(
        "who waits for two models loses its place in the line of the first",
        "core/standings.py",
        "        if self._lags:\n            for lane in flow.lanes.values():\n                lane.offset -= short\n\n"
        "    def _level",
        "    def _level",
        FOUND,
    ),
    Mutation(
        "what goes back to the line stands behind what entered meanwhile",
        "core/fairqueue.py",
        " or request._seq < lane.number):",
        "):",
        FOUND,
    ),
    Mutation(
        "tickets do not move with the line",
        "core/estimate.py",
        "before = now + (last[0] - now) * step / last[1]",
        "before = last[0]",
        ("tests/core/test_estimate.py",),
    ),
    Mutation(
        "what has ended refers to its lease",
        "runtime/exchange.py",
        "        self.request.lease = None\n",
        "",
        ("tests/runtime/test_memory.py", "-k", "plain"),
    ),
    Mutation(
        "a newcomer stands beside those of any class",
        "core/standings.py",
        "                    and other.group is need.group\n",
        "",
        TURNS,
    ),
    Mutation(
        "classes are thought to go at one pace",
        "core/state.py",
        "(len(sets) > 1 or bool(self.groups))",
        "(len(sets) > 1)",
        TURNS,
    ),
    Mutation(
        "what a tenant uses elsewhere costs it its turn",
        "core/standings.py",
        "                lane.offset -= delta\n",
        "                pass\n",
        TURNS,
    ),
    Mutation(
        "a class that lags comes before its tenant's more urgent one",
        "core/fairqueue.py",
        "if other.need.model.reach != reach and flow.service + other.offset != key:",
        "if flow.service + other.offset != key:",
        TURNS,
    ),
    Mutation(
        "a reserve is for any width",
        "core/tenant.py",
        "return self.held + width <= self.reserved",
        "return self.held < self.reserved",
        TURNS,
    ),
    Mutation(
        "who is within its reserve loses its place",
        "core/entrance.py",
        "return 0 < tenant.reserved >= tenant.held + tenant.waiting",
        "return False",
        TURNS,
    ),
    Mutation(
        "a reserve stands below the classes",
        "core/fairqueue.py",
        "        if self._reserving:\n            first = self._first_reserved()",
        "        if self._bands is not None:\n            best = self._bands.best(self._active)\n"
        "        if self._reserving:\n            first = self._first_reserved()",
        TURNS,
    ),
    Mutation(
        "all tenants are charged by the longest",
        "core/metered.py",
        "        costs = self._learned.get((model, tenant))",
        "        costs = next(iter(self._learned.values()), None)",
        TURNS,
    ),
    Mutation(
        "the cap falls at once",
        "core/costs.py",
        "self._cap = max(self._due, self._cap - fall)",
        "self._cap = self._due",
        BOUNDS,
    ),
    Mutation(
        "instalments grow",
        "core/metered.py",
        "        step = self.at_dispatch(lease.request)\n        behind = (now",
        "        step = max(charged, self.at_dispatch(lease.request))\n        behind = (now",
        BOUNDS,
    ),
    Mutation(
        "an instalment that makes a waiter the next one wakes nobody",
        "core/moves.py",
        "        if self.state.limits.max_running is not None:\n            for pool in",
        "        if False:\n            for pool in",
        FOUND,
    ),
    Mutation(
        "a ticket is good twice",
        "core/claims.py",
        "        self._drop(heappop(mine)[2])\n        return True",
        "        return True",
        CLAIMS,
    ),
)

RUNTIME = (
    Mutation(
        "an engine that says that it goes on is not believed",
        "runtime/drain.py",
        "if working_at is not None and self._drains.loop.time() - working_at <= _FRESH_S:",
        "if False:",
        ("tests/faults/test_edges.py", "-k", "A1"),
    ),
    Mutation(
        "who is displaced is not told",
        "runtime/gate.py",
        "            elif isinstance(effect, Expired | Displaced):",
        "            elif isinstance(effect, Expired):",
        GATE,
    ),
    Mutation(
        "a grant that nobody takes is lost",
        "runtime/gate.py",
        "                self.release(lease)  # granted, but nothing was sent: free at once\n",
        "                pass\n",
        GATE,
    ),
    Mutation(
        "a broken metric costs a grant",
        "runtime/gate.py",
        '            self._bug("an event was lost", bug)',
        "            raise",
        GATE,
    ),
    Mutation(
        "the timer is not set",
        "runtime/gate.py",
        "                    future.set_exception(error)\n        self._arm()",
        "                    future.set_exception(error)",
        GATE,
    ),
    Mutation(
        "the slot of a request that was sent is free when we close",
        "runtime/attempt.py",
        "        if self.ended or conn is None:\n            self._gate",
        "        if self.ended or conn is None or self.sent:\n            self._gate",
        OWNER,
    ),
    Mutation(
        "the connection of a request that was not sent is lost",
        "runtime/attempt.py",
        "            conn.release()\n            self._gate.release(self.lease)",
        "            self._gate.release(self.lease)",
        OWNER,
    ),
    Mutation(
        "a close is believed whatever the policy",
        "runtime/drain.py",
        '        if settings.policy in ("worst_case", "confirm"):',
        "        if settings.policy is None:",
        OWNER,
    ),
    Mutation(
        "a drain is over when we lose patience",
        "runtime/drain.py",
        "        self._drains.emit(CleanupOverdue(self.upstream.name))\n        self._until_limit()",
        '        self._drains.emit(CleanupOverdue(self.upstream.name))\n        self.finish("limit")',
        OWNER,
    ),
    Mutation(
        "an engine that can be asked has no time to answer after a deadline",
        "runtime/drain.py",
        '        if settings.policy == "confirm":\n            least_s',
        "        if False:\n            least_s",
        OWNER,
    ),
    Mutation(
        "the backend's own end is not seen while it drains",
        "runtime/drain.py",
        '    def _ended(self) -> None:\n        self.finish("ended")',
        "    def _ended(self) -> None:\n        pass",
        OWNER,
    ),
    Mutation(
        "a grant without an attempt is kept",
        "runtime/exchange.py",
        "                    gate.release(lease)  # granted, and no attempt was made with it",
        "                    pass",
        ("tests/runtime/test_injection.py", "-k", "call_out and full"),
    ),
    Mutation(
        "an attempt is not closed at the end",
        "runtime/attempt.py",
        "        if self._closed:\n            return\n        self._closed = True",
        "        return",
        AWAITS,
    ),
    Mutation(
        "one failure at the end stops the rest of the cleaning up",
        "runtime/exchange.py",
        '                self._services.bug("an exchange could not be finished cleanly", bug)',
        '                return self._services.bug("an exchange could not be finished cleanly", bug)',
        CALLS,
    ),
    Mutation(
        "another attempt is made after output",
        "runtime/exchange.py",
        "        if not full and (\n            self._body_sent\n            or result",
        "        if not full and (\n            result",
        MISSING,
    ),
    Mutation(
        "a request refused as full after output goes back to the line",
        "runtime/exchange.py",
        "        full = result.full and not self._body_sent",
        "        full = result.full",
        MISSING,
    ),
    Mutation(
        "a connection that ends early is success",
        "runtime/attempt.py",
        "            if relay is not None and by_backend and self.tracker.complete and not",
        "            if relay is not None and by_backend and not",
        ("tests/contract/test_c_streams.py", "-k", "error_table and cut"),
    ),
)

WIRE = (
    Mutation(
        "[DONE] after an error makes it a success",
        "wire/chat.py",
        "        return self.error is None and (self.marker or self.finished)",
        "        return self.marker or self.finished",
        CHAT,
    ),
    Mutation(
        "one finished choice finishes all",
        "wire/chat.py",
        "            self.finished = len(self.finish_reasons) == self._choices",
        "            self.finished = True",
        CHAT,
    ),
    Mutation(
        "what follows the marker passes",
        "wire/chat.py",
        "            return not self._dropping",
        "            return True",
        CHAT,
    ),
    Mutation(
        "an error in the middle of a stream passes unread",
        "wire/chat.py",
        '        if block.rfind(b"error") >= 0 or block.rfind(_DONE) >= 0:',
        "        if block.rfind(_DONE) >= 0:",
        MISSING,
    ),
)

MUTATIONS = CORE + RUNTIME + WIRE
