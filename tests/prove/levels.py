"""The levels of proof, each run with a budget, and what each has counted.

A level is a function of a budget and a voice. It raises if something does not hold, says how far it is, and returns
its numbers: plain values, so that they can be printed, kept, and told (`tell`). They do not depend on the machine,
but for those of the storms and of what a fuzzer guided by coverage makes up.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.prove import mutants
from tests.prove.explore import LARGE, SMALL, Explored, Scope, explore
from tests.prove.histories import run
from tests.prove.invariants import CHECKS
from tests.prove.mutations import MUTATIONS

Numbers = dict[str, Any]
Say = Callable[[str], None]
PROCESSES = 2
FUZZED = ("stream", "peek", "server", "client")


@dataclass(frozen=True)
class Budget:
    """How much of each level, 0 or () for none of it. Seeds begin where those of the suite end, but in a full run,
    which holds both.
    """

    scopes: tuple[Scope, ...]
    first_seed: int
    histories: int
    shapes: tuple[str, ...] | None  # of requests whose every point is made to fail; None is all
    runs: int  # under virtual time
    storms: tuple[int, ...]  # callers of each
    inputs: int  # for each target, blind
    guided: int  # for each target, with coverage
    mutants: int  # every so manieth of the planted bugs


STEPS = 80  # of a history, at least
FULL = Budget(SMALL + LARGE, 0, 5_000, None, 400, (1000, 1000, 1000), 20_000, 20_000, 1)
CI = Budget(LARGE[:1], 10_000, 400, (), 40, (), 4_000, 0, 1)
QUICK = Budget(SMALL, 10_000, 200, ("stream", "full", "leaves"), 10, (150,), 1_000, 0, 10)


# --- admission alone -------------------------------------------------------------------------------------------------


def explored(budget: Budget, say: Say) -> Numbers:
    """Small worlds, every interleaving."""
    scopes: dict[str, Numbers] = {}
    with processes() as pool:
        for scope, found in each(pool, explore_whole, {scope.name: scope for scope in budget.scopes}):
            scopes[scope] = {
                "states": found.states,
                "steps": found.steps,
                "deepest": found.deepest,
                "decided": dict(sorted(found.decided.items())),
            }
            say(f"{scope}: {found.states:,} states, {found.steps:,} steps")
    return {"scopes": {scope.name: scopes[scope.name] for scope in budget.scopes}}


def explore_whole(scope: Scope) -> Explored:
    found = explore(scope)
    assert found.whole, scope.name
    return found


def histories(budget: Budget, say: Say) -> Numbers:
    """Random histories against the oracle, every invariant after every step."""
    seeds = range(budget.first_seed, budget.first_seed + budget.histories)
    blocks = {str(seeds[at]): seeds[at : at + 100] for at in range(0, len(seeds), 100)}
    steps, settings = 0, 0
    decided: Counter[str] = Counter()
    with processes() as pool:
        for _, (some_steps, some_decided, some) in each(pool, block_of_histories, blocks):
            steps += some_steps
            settings += some
            decided.update(some_decided)
            say(f"{settings:,} of {len(seeds):,} histories, {steps:,} steps")
    return {
        "seeds": [seeds.start, seeds.stop - 1],
        "steps": steps,
        "invariants": len(CHECKS),
        "decided": dict(sorted(decided.items())),
    }


def block_of_histories(seeds: range) -> tuple[int, Counter[str], int]:
    steps = 0
    decided: Counter[str] = Counter()
    for seed in seeds:
        with named(f"history of seed {seed}"):
            both = run(seed, STEPS)
        steps += len(both.history)
        decided.update(said[0] for _, said in both.log)
    return steps, decided, len(seeds)


# --- the whole gateway -----------------------------------------------------------------------------------------------


def injected(budget: Budget, say: Say) -> Numbers:
    """Each call-out made to raise, each await cancelled; the points are counted in a clean run."""
    from tests.runtime.test_injection import SHAPES

    chosen = list(SHAPES) if budget.shapes is None else budget.shapes
    shapes: dict[str, Numbers] = {}
    with processes() as pool:
        for shape, (call_outs, raised, awaits, cancelled) in each(pool, every_point, {s: s for s in chosen}):
            shapes[shape] = {
                "call_outs": call_outs,
                "raised": raised,
                "awaits": awaits,
                "cancelled": cancelled,
            }
            say(
                f"{shape}: {raised} of {call_outs} call-outs raised, {cancelled} of {awaits} awaits cancelled"
            )
    return {"shapes": {shape: shapes[shape] for shape in chosen}}


def every_point(shape: str) -> tuple[int, int, int, int]:
    from tests.runtime.test_injection import AWAITING, cancel_at_each, missed, raise_at_each

    with named(f"a request of the shape {shape}"):
        counted, failed = asyncio.run(raise_at_each(shape))
        assert missed(shape, len(counted), len(failed)) == 0, (counted, failed)
        awaits, cancelled = asyncio.run(cancel_at_each(shape)) if shape in AWAITING else (0, 0)
        assert missed(shape, awaits, cancelled) == 0, (awaits, cancelled)
    return len(counted), len(failed), awaits, cancelled


def virtual(budget: Budget, say: Say) -> Numbers:
    """Whole gateways under virtual time, the books looked at in every turn."""
    seeds = range(budget.first_seed, budget.first_seed + budget.runs)
    turns, done = 0, 0
    fates: Counter[str] = Counter()
    with processes() as pool:
        for _, (some_turns, some_fates) in each(pool, virtual_run, {str(seed): seed for seed in seeds}):
            turns += some_turns
            done += 1
            fates.update(some_fates)
            if done % 10 == 0 or done == len(seeds):
                say(f"{done} of {len(seeds)} runs, {turns:,} turns, {fates.total():,} requests")
    return {"seeds": [seeds.start, seeds.stop - 1], "turns": turns, "fates": dict(fates.most_common())}


def virtual_run(seed: int) -> tuple[int, Counter[str]]:
    from tests.virtual.test_random_runs import one_run

    with named(f"virtual run of seed {seed}"):
        made = one_run(seed)
    return made.checked, made.fates


def stormed(budget: Budget, say: Say) -> Numbers:
    """Callers that leave at any moment, over real sockets, told alike by gateway and model server."""
    from tests.storm.test_storm import one_storm

    fates: Counter[str] = Counter()
    for number, callers in enumerate(budget.storms):
        with named(f"storm of {callers} callers, seed {100 + number}"):
            within_s = 10.0 if callers >= 1000 else 1.0
            fates.update(one_storm(100 + number, callers, within_s, to_the_last_file=callers >= 1000))
        say(f"{number + 1} of {len(budget.storms)} storms, {fates.total():,} callers")
    return {"storms": len(budget.storms), "fates": dict(fates.most_common())}


# --- bytes and bugs --------------------------------------------------------------------------------------------------


def fuzzed(budget: Budget, say: Say) -> Numbers:
    """The targets of the fuzzer: so many inputs blind, and, where atheris is, so many with coverage."""
    guided = budget.guided if importlib.util.find_spec("atheris") is not None else 0
    jobs = {f"{target} {how}": (target, how, n) for target in FUZZED for how, n in
            (("blind", budget.inputs), ("guided", guided)) if n}  # fmt: skip
    targets: dict[str, Numbers] = {target: {"blind": 0, "guided": 0} for target in FUZZED}
    with processes() as pool:
        for job, tried in each(pool, fuzz, jobs):
            target, how = job.split()
            targets[target][how] = tried
            say(f"{target}: {tried:,} inputs, {how}")
    return {"targets": targets, "atheris": importlib.util.find_spec("atheris") is not None}


def fuzz(job: tuple[str, str, int]) -> int:
    target, how, inputs = job
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        options = ["--runs", str(inputs), "--seconds", "3600", "--seed", "1", "--keep", folder]
        options += ["--blind"] if how == "blind" else []
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", target, *options],
            cwd=mutants.ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    said = done.stdout + done.stderr
    tried = re.search(r"(?:number_of_executed_units: +(\d+))|: (\d+) inputs", said)
    assert done.returncode == 0, said[-3000:]
    assert tried is not None, said[-3000:]
    return int(tried[1] or tried[2])


def planted(budget: Budget, say: Say) -> Numbers:
    """Bugs planted one at a time, and which test notices each."""
    caught: list[Numbers] = []
    survived: list[str] = []
    for verdict in mutants.judge(MUTATIONS[:: budget.mutants]):
        what = verdict.mutation
        if verdict.caught_by is None:
            survived.append(f"{what.path}: {what.name} ({verdict.why})")
        else:
            caught.append({"file": what.path, "bug": what.name, "noticed_by": verdict.caught_by})
        say(f"{len(caught)} noticed, {len(survived)} not: {what.name}")
    assert not survived, survived
    return {"bugs": len(MUTATIONS), "caught": caught}


LEVELS: dict[str, Callable[[Budget, Say], Numbers]] = {
    "exploration": explored,
    "histories": histories,
    "injection": injected,
    "virtual": virtual,
    "storms": stormed,
    "fuzzing": fuzzed,
    "mutants": planted,
}


def wanted(budget: Budget) -> list[str]:
    """The levels of which the budget has something."""
    shares = (
        budget.scopes,
        budget.histories,
        budget.shapes,
        budget.runs,
        budget.storms,
        budget.inputs,
        budget.mutants,
    )
    return [level for level, share in zip(LEVELS, shares, strict=True) if share is None or share]


# --- how -------------------------------------------------------------------------------------------------------------


@contextmanager
def named(what: str) -> Iterator[None]:
    """Say what broke."""
    try:
        yield
    except Exception as broken:
        raise AssertionError(f"{what}: {type(broken).__name__}: {broken}") from broken


@contextmanager
def processes() -> Iterator[ProcessPoolExecutor]:
    """Some processes; what has not begun when something fails never does."""
    pool = ProcessPoolExecutor(PROCESSES, initializer=gc.set_threshold, initargs=(200_000, 20, 100))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def each(
    pool: ProcessPoolExecutor, do: Callable[[Any], Any], things: dict[str, Any]
) -> Iterable[tuple[str, Any]]:
    """The results of `do` by the name of the thing, as they come."""
    running: dict[Future[Any], str] = {pool.submit(do, thing): name for name, thing in things.items()}
    for future in as_completed(running):
        yield running[future], future.result()
