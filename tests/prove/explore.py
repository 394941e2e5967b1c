"""Every interleaving of a small world: breadth first over the states that admission can reach, each seen once.

From each state every step that is possible there is made, on a copy of the core and of the oracle: same decisions,
same state behind them. A state that is new is reached once more by replaying its whole history on a fresh core, where
a witness checks every invariant, and that the decisions are the same again.

Two states are the same if nothing that is decided later can tell them apart: times count from now, service from V.
What is left out of the key is what the oracle does not have (heaps, tombstones, measured speeds).

    python -m tests.prove.explore            all of them, in two processes
    python -m tests.prove.explore NAME ...   some of them; --help lists them
"""

from __future__ import annotations

import argparse
import copyreg
import gc
import io
import pickle
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from inferencemesh.core.charge import PerHeldSlot, PerSlot
from inferencemesh.core.metered import SlotSeconds
from inferencemesh.core.model import BackendSpec, BreakerSpec, Limits, ModelSpec, RetrySpec, TenantSpec
from inferencemesh.core.request import LeaseState
from tests.prove.invariants import check_all
from tests.prove.lockstep import agree
from tests.prove.naive import User, Wish
from tests.prove.oracle import Oracle
from tests.prove.steps import Core, NoChance, Setting, Step, offer
from tests.prove.watch import Watch


@dataclass(frozen=True)
class Scope:
    """A small world: who may ask for what, and how often what else may happen."""

    name: str
    setting: Setting
    offers: tuple[Step, ...]  # of those that differ only in their name, the first is offered first
    ticks: int = 0  # seconds that may pass
    requeues: int = 0  # of them all
    changes: int = 0  # of backends
    sizes: tuple[tuple[str, int], ...] = ()
    switches: tuple[str, ...] = ()  # backends that may go down and come back
    apart: bool = False  # the end of a lease and of its request are two steps, with others between them


@dataclass(slots=True)
class Explored:
    """What an exploration has seen."""

    scope: str
    states: int
    steps: int
    deepest: int
    seconds: float
    decided: Counter[str]
    whole: bool  # no state was left unexpanded


Left = tuple[int, int, int]  # ticks, requeues, changes

_kept: dict[int, object] = {}


def _recall(number: int) -> object:
    return _kept[number]


class Packer(pickle.Pickler):
    """Packs a state; what never changes is not copied with it."""

    dispatch_table = copyreg.dispatch_table.copy()

    @staticmethod
    def keep(constant: object) -> tuple[Any, tuple[int]]:
        _kept[id(constant)] = constant
        return _recall, (id(constant),)


for _constant in (
    BackendSpec,
    ModelSpec,
    TenantSpec,
    Limits,
    BreakerSpec,
    RetrySpec,
    PerSlot,
    NoChance,
    SlotSeconds,
    PerHeldSlot,
):
    Packer.dispatch_table[_constant] = Packer.keep


def pack(core: Core, oracle: Oracle) -> bytes:
    buffer = io.BytesIO()
    Packer(buffer, 5).dump((core, oracle))
    return buffer.getvalue()


def explore(scope: Scope, *, within_s: float = float("inf")) -> Explored:
    """Visit every state of the scope, or as many as time allows."""
    began = time.monotonic()
    core, oracle = Core(scope.setting), Oracle(scope.setting)
    left = (scope.ticks, scope.requeues, scope.changes)
    queue: deque[tuple[bytes, Left, list[Step]]] = deque([(pack(core, oracle), left, [])])
    seen = {digest(oracle, left)}
    decided: Counter[str] = Counter()
    steps = deepest = 0
    while queue and time.monotonic() - began < within_s:
        packed, left, history = queue.popleft()
        core, oracle = pickle.loads(packed)
        for made, left_then in list(possible(scope, core, left)):
            core, oracle = pickle.loads(packed)
            path = list(history)
            for step in made:
                mine = core.do(step)
                path.append(step)
                agree(core, oracle, mine, oracle.do(step, mine), path)
                steps += 1
                decided.update(said[0] for said in mine)
            key = digest(oracle, left_then)
            if key not in seen:
                seen.add(key)
                deepest = max(deepest, len(path))
                attest(scope, path, mine)
                queue.append((pack(core, oracle), left_then, path))
    return Explored(scope.name, len(seen), steps, deepest, time.monotonic() - began, decided, not queue)


def attest(scope: Scope, history: list[Step], last: list[tuple[str, ...]]) -> None:
    """The whole history once more on a fresh core, every invariant at its end, and the same last decisions."""
    watch = Watch(scope.setting)
    for step in history[:-1]:
        watch.hear(step)
    watch.look(("pass", 0.0))
    decided = watch.do(history[-1])
    assert decided == last, (decided, last, history)
    try:
        check_all(watch)
    except Exception as broken:
        raise AssertionError(f"after {history}: {broken}") from broken


def possible(scope: Scope, core: Core, left: Left) -> Iterator[tuple[tuple[Step, ...], Left]]:
    """Everything that may be next, and what is left of the scope after it.

    Where nothing is sent back and nothing doubted, the end of a request changes only the books: unless the scope
    asks for it apart, it follows the end of its lease at once.
    """
    ticks, requeues, changes = left
    kinds = set()
    for step in scope.offers:
        kind = step[2:]
        if step[1] not in core.requests and kind not in kinds:
            kinds.add(kind)
            yield (step,), left
    for name in core.waiting():
        yield (("cancel", name),), left
    running = {core.current(name): name for name in core.running()}
    for lease in core.open_leases(LeaseState.RUNNING):
        end = () if scope.apart else (("settle", running[lease], False),)
        yield (("release", *lease), *end), left
        yield (("drain", *lease), *end), left
        if core.leases[lease].backend.proven is not None:
            yield (("started", *lease),), left
    for lease in core.open_leases(LeaseState.DRAINING):
        yield (("confirm", *lease),), left
    for lease, name in running.items():
        if core.leases[lease].state is not LeaseState.RUNNING:
            yield (("settle", name, False),), left
            if core.leases[lease].backend.proven is not None:
                yield (("settle", name, True),), left
        if requeues:
            yield (("requeue", name, True, False, 0.0),), (ticks, requeues - 1, changes)
            yield (("requeue", name, False, True, 0.0),), (ticks, requeues - 1, changes)
    wake = core.wake_at()
    if wake is not None and wake <= core.now:
        yield (("expire",),), left
    if ticks:
        yield (("pass", 1.0),), (ticks - 1, requeues, changes)
    if changes:
        fewer = (ticks, requeues, changes - 1)
        backends = core.admission._state.backends
        for name, slots in scope.sizes:
            if backends[name].slots != slots:
                yield (("resize", name, slots),), fewer
        for name in scope.switches:
            yield (("up", name, not backends[name].up),), fewer


# --- when two states are the same ------------------------------------------------------------------------------------


def digest(oracle: Oracle, left: Left) -> bytes:
    """The key in 16 bytes."""
    return blake2b(repr(key_of(oracle, left)).encode(), digest_size=16).digest()


def key_of(oracle: Oracle, left: Left) -> object:
    """All that later decisions depend on."""
    now = oracle.now
    waiting = sorted(oracle.waiters, key=lambda wish: wish.number)
    servers = tuple(
        (
            s.slots,
            s.up,
            s.cordoned,
            s.proven,
            _from(s.resume_at, now),
            _from(s.quiet_until, now),
            s.backoff,
            s.kept_for.name if s.kept_for is not None else None,
        )
        for s in oracle.servers.values()
    )
    holds = tuple(
        (
            name,
            hold.state,
            hold.server.name,
            hold.level,
            hold.at > hold.server.full_at,
            hold.charged,
            now - hold.at if oracle.unit == "slot_seconds" else None,
        )
        for name, hold in sorted(oracle.holds.items())
        if hold.state != "freed" or oracle.wishes[name[0]].hold is hold
    )
    return (
        left,
        servers,
        tuple(_wish(oracle, wish) for wish in sorted(oracle.wishes.values(), key=lambda wish: wish.name)),
        tuple(wish.name for wish in waiting),
        tuple(wish.name for wish in oracle.waiters),
        tuple(wish.name for wish in oracle.collectors),
        holds,
        tuple(_user(oracle, user) for user in sorted(oracle.users.values(), key=lambda user: user.name)),
        tuple(oracle.turn.values()),
        oracle.closed,
    )


def _from(at: float | None, now: float) -> float | None:
    return None if at is None else at - now


def _wish(oracle: Oracle, wish: Wish) -> object:
    now = oracle.now
    if wish.state == "over":
        return wish.name, "over"
    behind = oracle.virtual[oracle.pool[wish.model]]
    ahead = max(wish.deadline - now, 0.0)
    if wish.state == "running":
        so_far = (wish.fulls, wish.exempt, tuple(wish.avoid), wish.left, wish.grants)
        return wish.name, "running", ahead, now - wish.arrived, so_far
    waits = (wish.until - now, wish.left - (now - wish.since), now - wish.arrived, wish.exempt)
    kept = (wish.key - behind, now - wish.kept_since) if wish.kept is not None else None
    told = (
        wish.charged if kept else 0,
        wish.fulls,
        wish.exempt,
        tuple(wish.avoid),
        wish.collects,
        wish.grants,
    )
    return wish.name, wish.state, ahead, waits, kept, _from(wish.alarm, now), told


def _user(oracle: Oracle, user: User) -> object:
    services = []
    for pool, virtual in oracle.virtual.items():
        waits = any(wish.user is user for wish in oracle.in_line(pool))
        service = user.service.get(pool, 0) - virtual
        matters = waits or service > 0 or oracle.unit == "slot_seconds"  # there, an instalment may still come
        services.append(service if matters else 0)
    first = user.waits_for
    return user.name, tuple(services), user.out, first.name if first is not None else None


# --- scopes ----------------------------------------------------------------------------------------------------------


def world(
    *,
    slots: tuple[int, int] = (1, 2),
    places: int = 2,
    routing: str = "least_busy",
    charge: str = "requests",
    reserved: int = 0,
) -> Setting:
    """Two backends, one model, three tenants; one of them has a weight of 2, one a limit of its own."""
    return Setting(
        tuple(BackendSpec(f"b{number}", count) for number, count in enumerate(slots)),
        (
            ModelSpec(
                "m",
                ("b0", "b1"),
                places,
                queue_timeout_s=2.0,
                refuse_hopeless=False,
                keeps_places=False,
                routing=routing,
            ),
        ),
        (TenantSpec("a", reserved=reserved), TenantSpec("b", 2.0), TenantSpec("c", max_running=2)),
        Limits(),
        charge,
    )


def alone(slots: int) -> Setting:
    """One backend."""
    model = ModelSpec("m", ("b",), 2, queue_timeout_s=2.0, refuse_hopeless=False, keeps_places=False)
    return Setting(
        (BackendSpec("b", slots),), (model,), (TenantSpec("a"), TenantSpec("b", 2.0), TenantSpec("c"))
    )


def offers(*wanted: tuple[str, int], ttl: float = 3.0) -> tuple[Step, ...]:
    return tuple(
        offer(f"{tenant}{number}", tenant, width=width, ttl=ttl)
        for number, (tenant, width) in enumerate(wanted)
    )


FOUR = (("a", 1), ("a", 1), ("b", 1), ("c", 2))

SMALL = (
    Scope("places", world(slots=(0, 1), places=1), offers(("a", 1), ("a", 1), ("b", 1)), ticks=1),
    Scope("alone", alone(2), offers(("a", 1), ("a", 1), ("b", 1), ("c", 2))),
    Scope("width", world(slots=(0, 2)), offers(("a", 1), ("b", 1), ("c", 2)), ticks=1),
    Scope("full", world(slots=(1, 1)), offers(("a", 1), ("b", 1)), requeues=1, ticks=1),
    Scope(
        "seconds", world(slots=(0, 1), charge="slot_seconds"), offers(("a", 1), ("b", 1), ("b", 1)), ticks=2
    ),
    Scope("fewest", world(slots=(0, 2), charge="slots"), offers(("a", 1), ("b", 1), ("b", 1), ("c", 1))),
    Scope("reserve", world(slots=(0, 1), reserved=1), offers(("a", 1), ("b", 1), ("b", 1), ("c", 1))),
    Scope("resize", world(), offers(("a", 1), ("c", 2)), changes=2, sizes=(("b1", 0), ("b1", 1), ("b1", 2))),
)
LARGE = (
    Scope("leases", world(places=1), offers(*FOUR), apart=True),
    Scope("time", world(places=1), offers(*FOUR), ticks=3),
    Scope("slot-seconds", world(places=1, charge="slot_seconds"), offers(*FOUR), ticks=3),
    Scope("full and retry", world(places=1), offers(*FOUR[:3]), requeues=1, apart=True),
    Scope("full in time", world(places=1), offers(*FOUR[1:]), requeues=1, ticks=1, apart=True),
    Scope("sizes", world(places=1), offers(*FOUR), changes=2, sizes=(("b1", 1), ("b1", 2)), switches=("b0",)),
)


def main(arguments: list[str]) -> int:
    """Explore, print, and fail if a world was not explored whole."""
    worlds = {scope.name: scope for scope in SMALL + LARGE}
    small = ", ".join(f"'{scope.name}'" for scope in SMALL)
    large = ", ".join(f"'{scope.name}'" for scope in LARGE)
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove.explore",
        description="Explore small worlds of admission whole: every step from every state, with every invariant.",
        epilog=f"Worlds that take seconds: {small}. Worlds that take minutes: {large}. All: some 25 minutes.",
    )
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help="which of them; all without any")
    names = parser.parse_args(arguments).worlds or list(worlds)
    if unknown := [name for name in names if name not in worlds]:
        parser.error(f"there is no world {', '.join(unknown)}: choose from {small}, {large}")
    print(f"exploring {len(names)} worlds; each is told when it is done", flush=True)
    states = steps = 0
    whole = True
    with ProcessPoolExecutor(2, initializer=gc.set_threshold, initargs=(200_000, 20, 100)) as processes:
        for found in processes.map(explore, [worlds[name] for name in names]):
            states += found.states
            steps += found.steps
            whole = whole and found.whole
            print(
                f"{found.scope:20} {found.states:>9,} states {found.steps:>10,} steps, at most {found.deepest} deep, "
                f"{found.seconds:6.1f} s, {'whole' if found.whole else 'NOT whole'}; "
                f"{dict(sorted(found.decided.items()))}",
                flush=True,
            )
    print(f"{'all of these':20} {states:>9,} states {steps:>10,} steps")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
