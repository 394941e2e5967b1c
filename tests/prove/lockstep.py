"""The core and the oracle under the same history: the same decisions, and the same state behind them."""

from __future__ import annotations

from collections import defaultdict

from inferencemesh.core.request import LeaseState, RequestState
from tests.prove.invariants import check_all
from tests.prove.oracle import Oracle
from tests.prove.steps import Core, Decision, Setting, Step
from tests.prove.watch import Watch


class DisagreementError(AssertionError):
    """The core and the oracle decided differently."""


class OpenChoiceError(Exception):
    """What was decided is open, and the two are different from here on: the history ends."""


class Lockstep(Watch):
    """Both of them, and the witness. `do` makes a step, compares, and checks every invariant.

    After an open choice (`ended`) it does nothing any more.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.oracle = Oracle(setting)
        self.ended = False

    def do(self, step: Step) -> list[Decision]:
        if self.ended:
            return []
        mine = super().do(step)
        try:
            agree(self.core, self.oracle, mine, self.oracle.do(step, mine), self.history)
        except OpenChoiceError:
            self.ended = True
        check_all(self)
        return mine

    def wind_up(self) -> None:
        """Everybody leaves, one by one, both still agreeing; then nothing is left of anybody (A5)."""
        core = self.core
        while not self.ended and (core.waiting() or core.running()):
            for name in core.waiting():
                if core.requests[name].state is RequestState.WAITING:
                    self.do(("cancel", name))
            for name in core.running():
                self.do(("release", *core.current(name)))
                self.do(("settle", name, False))
        for lease in core.open_leases(LeaseState.DRAINING):
            self.do(("confirm", *lease))
        if self.ended:
            return
        assert not core.waiting(), self.history
        assert not core.open_leases(LeaseState.RUNNING, LeaseState.DRAINING), self.history
        assert all(view.reserved_for is None for view in self.seen.backends), self.history


def agree(
    core: Core, oracle: Oracle, mine: list[Decision], theirs: list[Decision], history: list[Step]
) -> None:
    """Raise unless core and oracle have decided the same, and are in the same state as far as it decides anything."""
    told = f"after {history}"
    if _by_pool(oracle, mine) != _by_pool(oracle, theirs):
        raise DisagreementError(f"core {mine}, oracle {theirs}, {told}")
    state = core.admission._state
    wake, due_at = core.wake_at(), oracle.wake_at()
    if due_at is not None and (wake is None or wake > due_at):  # the core may wake for nothing, but not late
        raise DisagreementError(f"core wakes at {wake}, oracle at {due_at}, {told}")
    for name, server in oracle.servers.items():
        backend = state.backends[name]
        kept = server.kept_for.name if server.kept_for is not None else None
        reserved = backend.reserved_for.id if backend.reserved_for is not None else None
        seen = (backend.running, backend.draining, backend.capacity, backend.open, reserved)
        due = (server.running, server.draining, server.capacity, server.open, kept)
        if seen != due:
            raise DisagreementError(f"{name}: core {seen}, oracle {due}, {told}")
    waiting = {wish.name for wish in oracle.waiters}
    if set(core.waiting()) != waiting:
        raise DisagreementError(f"core's line {core.waiting()}, oracle's {waiting}, {told}")
    for name in waiting:
        request, wish = core.requests[name], oracle.wishes[name]
        queue = state.models[request.model].pool.queue
        place = request._place
        assert place is not None
        if request._expires_at != wish.until:
            raise DisagreementError(f"{name}: expires at {request._expires_at}, or {wish.until}, {told}")
        if wish.state == "waiting":
            behind = queue.flows[place.tenant].service - queue.v
            pool = oracle.pool[wish.model]
            due_behind = wish.user.service[pool] - oracle.virtual[pool]
            if behind != due_behind and _noticed_late(oracle, mine, history[-1]):
                raise OpenChoiceError
            if behind != due_behind:
                raise DisagreementError(f"{name}: F-V core {behind}, oracle {due_behind}, {told}")


def _noticed_late(oracle: Oracle, mine: list[Decision], step: Step) -> bool:
    """Whether a waiter beyond its deadline was met, and somebody with a reserve came before it.

    Whose turn it would have been decides how far V follows; whether that is one who is late, and not yet known to be,
    is open. It takes an `expire` that comes too late.
    """
    met = step[0] != "expire" and any(said[0] == "expired" for said in mine)
    return met and any(user.reserved for user in oracle.users.values())


def _by_pool(oracle: Oracle, decisions: list[Decision]) -> tuple[dict[int, list[Decision]], set[Decision]]:
    """Pools are independent of each other, and a late waiter may be noticed anywhere in the step."""
    order: dict[int, list[Decision]] = defaultdict(list)
    for said in decisions:
        if said[0] != "expired":
            order[oracle.pool[oracle.wishes[said[1]].model]].append(said)
    return order, {said for said in decisions if said[0] == "expired"}
