"""A load generator that costs a few microseconds a request. Loopback only, bounded in time and connections.

    python -m bench.load --mode plain --port 8080 --connections 16 --seconds 2

Prints one JSON object: what was served in the window, what the watched processes spent on it, what was wrong.

    plain    closed loop: each connection sends the next request when the answer is whole
    short    the same with streams that arrive at once
    paced    that many streams with an event every --interval-ms each; all are read to their end
    open     streams that stay silent after their first event; memory of the watched processes at --levels
    latency  plain requests at --rate per second; how long until the answer is whole
    first    streams at --rate per second; how long until the first content

Answers are recognised by their first and last bytes. The first answer of each connection and every paced
stream are kept and parsed strictly after the window (verify.py).
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import uvloop

from bench import messages, procfs, verify
from bench.clients import CONTENT, PLAIN_TAIL, STREAM_TAIL, Looper, Probe, Reader, Tally, connect
from bench.messages import Plan

MODES = ("plain", "short", "paced", "open", "latency", "first")
MAX_CONNECTIONS = 4000
MAX_SECONDS = 60.0
GRACE_S = 20.0  # beyond the planned time, then the run is given up


@dataclass(slots=True)
class Spec:
    """What to do. Times in seconds unless named otherwise."""

    mode: str
    port: int
    connections: int = 16
    seconds: float = 2.0
    warm_s: float = 0.3
    ramp_s: float = 0.4  # over which paced streams are started
    interval_ms: int = 10
    tokens: int = 2
    rate: float = 100.0
    levels: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()  # connections take turns
    watch: dict[str, list[int]] = field(default_factory=dict)  # label -> pids

    def requests(self, plan: Plan) -> list[bytes]:
        """The request's bytes for each key in turn."""
        host = f"127.0.0.1:{self.port}"
        return [messages.request(plan, host=host, key=key) for key in self.keys or ("",)]


@dataclass(slots=True)
class Reading:
    """Counters and CPU clocks at one instant."""

    at: float
    done: int
    events: int
    reads: int
    bytes: int
    cpu: dict[str, procfs.Threads]

    @classmethod
    def take(cls, tally: Tally, watch: dict[str, list[int]]) -> Reading:
        cpu = {label: procfs.threads_ns(pids) for label, pids in watch.items()}
        cpu["load"] = procfs.threads_ns([os.getpid()])
        return cls(time.perf_counter(), tally.done, tally.events, tally.reads, tally.bytes, cpu)


def window(before: Reading, after: Reading) -> dict[str, Any]:
    """What happened between two readings: counts, seconds, and nanoseconds of CPU by label."""
    return {
        "window_s": after.at - before.at,
        "done": after.done - before.done,
        "events": after.events - before.events,
        "reads": after.reads - before.reads,
        "bytes": after.bytes - before.bytes,
        "cpu_ns": {label: procfs.spent_ns(before.cpu[label], after.cpu[label]) for label in after.cpu},
    }


def percentile(values: list[float], share: float) -> float:
    """The nearest-rank percentile; `share` in 0..1. nan of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def _until(condition: Callable[[], bool], within_s: float = GRACE_S / 4) -> bool:
    """Look at `condition` now and then; whether it came true in time."""
    for _ in range(int(within_s / 0.02)):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return condition()


async def _closed_loop(spec: Spec, tally: Tally) -> dict[str, Any]:
    stream = spec.mode == "short"
    plan = Plan(stream=stream, tokens=spec.tokens)
    requests = spec.requests(plan)
    if stream:
        tail, events = STREAM_TAIL, messages.event_count(spec.tokens)
        check: Callable[[bytes], str | None] = functools.partial(verify.stream_fault, tokens=spec.tokens)
    else:
        tail, events, check = PLAIN_TAIL, 0, verify.plain_fault
    loopers: list[Looper] = []
    for number in range(spec.connections):
        make = functools.partial(Looper, tally, requests[number % len(requests)], tail, events)
        loopers.append(await connect(make, spec.port))
    for looper in loopers:
        looper.send()
    await asyncio.sleep(spec.warm_s)
    before = Reading.take(tally, spec.watch)
    await asyncio.sleep(spec.seconds)
    result = window(before, Reading.take(tally, spec.watch))
    for looper in loopers:
        looper.stop()
        tally.fault(check(looper.first_answer))
    return result


async def _paced(spec: Spec, tally: Tally) -> dict[str, Any]:
    lasting_s = spec.ramp_s + spec.warm_s + spec.seconds + 0.2
    tokens = math.ceil(lasting_s * 1000 / spec.interval_ms)
    requests = spec.requests(Plan(True, tokens, spec.interval_ms, spec.interval_ms))
    readers: list[Reader] = []
    started_at = time.perf_counter()
    for number in range(spec.connections):
        # Streams start one after the other, so that their events do not come in step.
        ahead_s = started_at + number * spec.ramp_s / spec.connections - time.perf_counter()
        await asyncio.sleep(max(0.0, ahead_s))
        reader = await connect(functools.partial(Reader, tally, requests[number % len(requests)]), spec.port)
        reader.send()
        readers.append(reader)
    await asyncio.sleep(spec.warm_s)
    before = Reading.take(tally, spec.watch)
    await asyncio.sleep(spec.seconds)
    result = window(before, Reading.take(tally, spec.watch))
    await _until(lambda: all(reader.ended for reader in readers))
    for reader in readers:
        tally.fault(verify.stream_fault(b"".join(reader.pieces), tokens))
        reader.stop()
    return result


async def _open(spec: Spec, tally: Tally) -> dict[str, Any]:
    requests = spec.requests(Plan(True, tokens=10, interval_ms=3_600_000, first_ms=0))
    readers: list[Reader] = []
    levels: list[dict[str, Any]] = []
    for level in spec.levels:
        while len(readers) < level:
            make = functools.partial(Reader, tally, requests[len(readers) % len(requests)])
            reader = await connect(make, spec.port)
            reader.send()
            readers.append(reader)
            if len(readers) % 50 == 0:
                await asyncio.sleep(0.01)
        if not await _until(lambda: all(CONTENT in reader.pieces_joined() for reader in readers)):
            tally.fault(f"not all of {level} streams have begun")
        await asyncio.sleep(spec.warm_s)
        levels.append(
            {
                "streams": level,
                "pss_kib": {label: procfs.pss_kib(pids) for label, pids in spec.watch.items()},
                "rss_kib": {label: procfs.rss_kib(pids) for label, pids in spec.watch.items()},
            }
        )
    # Open and silent: what it costs to hold them.
    before = Reading.take(tally, spec.watch)
    await asyncio.sleep(spec.seconds)
    result = window(before, Reading.take(tally, spec.watch))
    for reader in readers:
        if reader.ended or not reader.pieces_joined().startswith(b"HTTP/1.1 200 "):
            tally.fault(f"not an open stream: {reader.pieces_joined()[:200]!r}")
        reader.stop()
    return result | {"levels": levels}


async def _latency(spec: Spec, tally: Tally) -> dict[str, Any]:
    first = spec.mode == "first"
    # The content follows the role event in a write of its own; what comes after it does not matter here.
    plan = Plan(stream=first, tokens=spec.tokens, interval_ms=spec.interval_ms if first else 0, first_ms=0)
    tail = STREAM_TAIL if first else PLAIN_TAIL
    requests = spec.requests(plan)
    free: list[Probe] = []
    probes: list[Probe] = []
    for number in range(spec.connections):
        make = functools.partial(Probe, tally, requests[number % len(requests)], tail, first, free)
        probes.append(await connect(make, spec.port))
    free.extend(probes)
    skipped = 0
    begin_at = time.perf_counter()
    warm = max(1, int(spec.warm_s * spec.rate))
    total = warm + int(spec.seconds * spec.rate)
    before = Reading.take(tally, spec.watch)
    for number in range(total):
        if number == warm:
            before = Reading.take(tally, spec.watch)
            for probe in probes:
                probe.latencies.clear()
        ahead_s = begin_at + number / spec.rate - time.perf_counter()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        if free:
            free.pop(0).send()
        else:
            skipped += 1
    ended = await _until(lambda: len(free) == len(probes))
    result = window(before, Reading.take(tally, spec.watch))
    if not ended:
        tally.fault(f"{len(probes) - len(free)} requests without a whole answer")
    micros = [value * 1e6 for probe in probes for value in probe.latencies]
    for probe in probes:
        probe.stop()
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return result | {
        "latency_us": {name: percentile(micros, share) for name, share in shares.items()},
        "samples": len(micros),
        "skipped": skipped,
    }


_RUN = {
    "plain": _closed_loop,
    "short": _closed_loop,
    "paced": _paced,
    "open": _open,
    "latency": _latency,
    "first": _latency,
}


async def run(spec: Spec) -> dict[str, Any]:
    """Do what `spec` says; the result says what was wrong under `faults`.

    Raises:
        ValueError: more connections or seconds than this generator is meant for.
        TimeoutError: it took much longer than planned.
    """
    if spec.mode not in _RUN:
        raise ValueError(f"no such mode: {spec.mode}")
    if max(spec.connections, *spec.levels, 1) > MAX_CONNECTIONS or spec.seconds > MAX_SECONDS:
        raise ValueError(f"at most {MAX_CONNECTIONS} connections and {MAX_SECONDS:.0f} s")
    tally = Tally()
    gc.collect()
    gc.freeze()
    planned_s = spec.seconds + spec.warm_s * (1 + len(spec.levels)) + spec.ramp_s
    async with asyncio.timeout(planned_s + GRACE_S):
        result = await _RUN[spec.mode](spec, tally)
    return {"mode": spec.mode, **result, "fault_count": tally.fault_count, "faults": tally.faults}


def _watched(text: str) -> tuple[str, list[int]]:
    label, _, pids = text.partition("=")
    return label, [int(pid) for pid in pids.split(",") if pid]


def parse(argv: list[str] | None = None) -> tuple[Spec, int | None]:
    """The command line: what to do, and the CPU to run on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warm", dest="warm_s", type=float, default=0.3)
    parser.add_argument("--ramp", dest="ramp_s", type=float, default=0.4)
    parser.add_argument("--interval-ms", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=2)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--levels", type=int, nargs="*", default=())
    parser.add_argument("--key", dest="keys", action="append", default=[], help="may be given several times")
    parser.add_argument("--watch", type=_watched, action="append", default=[], metavar="LABEL=PID,PID")
    parser.add_argument("--cpu", type=int, default=None)
    given = vars(parser.parse_args(argv))
    cpu = given.pop("cpu")
    given["watch"] = dict(given["watch"])
    given["levels"] = tuple(given["levels"])
    given["keys"] = tuple(given["keys"])
    return Spec(**given), cpu


def main() -> None:
    """Entry of `python -m bench.load`."""
    spec, cpu = parse()
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    print(json.dumps(uvloop.run(run(spec))))


if __name__ == "__main__":
    main()
