"""What is measured, how it is run in turns, and what is made of the samples."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import summary
from bench.peers import ROOT, FakeBackend, InferenceMesh, Peer, PeerError, child_setup
from bench.settings import KEYS
from bench.summary import Sample

LOAD_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load. The first figure of `figures` is the one that the table shows."""

    name: str
    title: str
    unit: str
    mode: str
    options: dict[str, float] = field(default_factory=dict)
    levels: tuple[int, int] = (0, 0)
    quick_levels: tuple[int, int] = (0, 0)
    fresh: bool = False  # in a process that has served nothing else
    per: str = "done"  # what the CPU time is divided by


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("plain", "plain request", "µs CPU", "plain", {"connections": 16}),
        Scenario("start", "stream start", "µs CPU", "short", {"connections": 16, "tokens": 2}),
        Scenario(
            "busy",
            "event, 200 streams at 10 ms",
            "µs CPU",
            "paced",
            {"connections": 200, "interval-ms": 10},
            per="events",
        ),
        Scenario(
            "calm",
            "event, 40 streams at 20 ms",
            "µs CPU",
            "paced",
            {"connections": 40, "interval-ms": 20},
            per="events",
        ),
        Scenario("latency", "added latency", "µs p50", "latency", {"connections": 4, "rate": 100}),
        Scenario(
            "first",
            "added time to first content",
            "µs p50",
            "first",
            {"connections": 4, "rate": 100, "interval-ms": 2, "tokens": 3},
        ),
        Scenario(
            "memory",
            "open idle stream",
            "KiB",
            "open",
            levels=(200, 2000),
            quick_levels=(100, 800),
            fresh=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Cpus:
    """Who runs where; None leaves it to the scheduler."""

    gateway: int | None
    fake: int | None
    load: int | None

    @classmethod
    def choose(cls, available: Sequence[int], *, pin: bool = True) -> Cpus:
        """The gateway alone on one CPU; the fake and the load share the other one if there is no third."""
        if not pin or len(available) < 2:
            return cls(None, None, None)
        return cls(available[0], available[1], available[min(2, len(available) - 1)])


def figures(scenario: Scenario, result: dict[str, Any], *, direct: bool) -> dict[str, float]:
    """The figures of one run of the load generator.

    `cpu_us` and its kin are microseconds for each answer or event; `fake_busy` and `load_busy` are shares of a
    CPU; `direct` has no gateway, so the fake's own cost stands in its place.
    """
    cpu, window_s = result["cpu_ns"], result["window_s"]
    count = max(1, result[scenario.per])
    found = {
        "cpu_us": cpu["fake" if direct else "gateway"] / count / 1e3,
        "fake_us": cpu["fake"] / count / 1e3,
        "load_us": cpu["load"] / count / 1e3,
        "per_second": result[scenario.per] / window_s,
        "gateway_busy": cpu.get("gateway", 0) / window_s / 1e9,
        "fake_busy": cpu["fake"] / window_s / 1e9,
        "load_busy": cpu["load"] / window_s / 1e9,
    }
    if result["events"]:
        found["reads_per_event"] = result["reads"] / result["events"]
        found["cpu_us_per_read"] = found["cpu_us"] * count / max(1, result["reads"])
    if "latency_us" in result:
        found |= {f"{name}_us": value for name, value in result["latency_us"].items()}
    if "levels" in result:
        low, high = result["levels"][0], result["levels"][-1]
        streams = high["streams"] - low["streams"]
        label = "fake" if direct else "gateway"
        for kind in ("pss", "rss"):
            found[f"{kind}_kib"] = (high[f"{kind}_kib"][label] - low[f"{kind}_kib"][label]) / streams
        found["base_pss_kib"] = low["pss_kib"][label] - found["pss_kib"] * low["streams"]
        # Of silent streams nothing is to be counted but the seconds.
        found["cpu_us"] = cpu[label] / 1e3 / window_s
    return found


@dataclass
class Bench:
    """One comparison: the fake, the peers, the rounds."""

    folder: Path
    peers: list[type[Peer]]
    scenarios: list[Scenario]
    rounds: int
    seconds: float
    quick: bool
    cpus: Cpus
    on_step: Callable[[str, str, int], None] = lambda _peer, _scenario, _round: None
    on_sample: Callable[[Sample], None] = lambda _sample: None
    notes: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """How many runs of the load generator there will be at most."""
        return self.rounds * len(self.peers) * len(self.scenarios)

    def run(self) -> list[Sample]:
        """All rounds: in each one every scenario, in each scenario one peer after the other.

        A peer that does not start is noted and left out.
        """
        samples: list[Sample] = []
        with contextlib.ExitStack() as stack:
            fake = FakeBackend(self.cpus.fake)
            stack.callback(fake.stop)
            running: list[Peer] = []
            for kind in self.peers:
                with contextlib.suppress(PeerError):
                    running.append(stack.enter_context(self._running(kind, fake)))
            for number in range(self.rounds):
                for scenario in self.scenarios:
                    for peer in running:
                        self.on_step(peer.name, scenario.name, number)
                        with contextlib.suppress(PeerError):
                            samples.append(self._sample(peer, scenario, number, fake))
                            self.on_sample(samples[-1])
        return samples

    @contextlib.contextmanager
    def _running(self, kind: type[Peer], fake: FakeBackend, folder: Path | None = None) -> Iterator[Peer]:
        peer = kind(folder or self.folder, fake.port, self.cpus.gateway)
        try:
            peer.start()
        except PeerError as error:
            self.notes.append(str(error))
            raise
        try:
            yield peer
        finally:
            peer.stop()

    def _sample(self, peer: Peer, scenario: Scenario, number: int, fake: FakeBackend) -> Sample:
        if not scenario.fresh:
            return self._one(peer, scenario, number, fake)
        with self._running(type(peer), fake, self.folder / f"{scenario.name}-{number}") as fresh:
            return self._one(fresh, scenario, number, fake)

    def _one(self, peer: Peer, scenario: Scenario, number: int, fake: FakeBackend) -> Sample:
        watch = {"gateway": peer.pids(), "fake": [fake.process.pid]}
        before = fake.stats()["connections"]
        result = run_load(self.load_options(scenario), peer.port, watch, self.cpus.load)
        opened = fake.stats()["connections"] - before - 1  # the second question's own
        found = figures(scenario, result, direct=peer.name == "direct")
        found["backend_connections"] = opened
        return Sample(peer.name, scenario.name, number, found, result["fault_count"], result["faults"])

    def load_options(self, scenario: Scenario) -> list[str]:
        """The load generator's command line for a scenario."""
        options = ["--mode", scenario.mode, "--seconds", str(self.seconds)]
        for name, value in scenario.options.items():
            options += [f"--{name}", f"{value:g}"]
        levels = scenario.quick_levels if self.quick else scenario.levels
        if levels != (0, 0):
            options += ["--levels", *map(str, levels)]
        return options


def run_load(
    options: list[str], port: int, watch: dict[str, list[int]], cpu: int | None = None
) -> dict[str, Any]:
    """Run the load generator in a process of its own; what it printed.

    Raises:
        PeerError: it failed.
    """
    command = [sys.executable, "-m", "bench.load", *options, "--port", str(port)]
    for key in KEYS:
        command += ["--key", key]
    for label, pids in watch.items():
        command += ["--watch", f"{label}={','.join(map(str, pids))}"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LOAD_WITHIN_S,
        cwd=ROOT,
        preexec_fn=child_setup(cpu),
        check=False,
    )
    if done.returncode != 0:
        raise PeerError(f"the load generator failed: {done.stderr.decode(errors='replace')[-600:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def report(bench: Bench, samples: list[Sample], versions: dict[str, str]) -> dict[str, Any]:
    """Everything as plain data: where it was measured, every sample, what follows from them."""
    return {
        "machine": {"cpus": os.cpu_count(), "kernel": os.uname().release, "python": sys.version.split()[0]},
        "versions": versions,
        "forms": {kind.name: kind.form() for kind in bench.peers if issubclass(kind, InferenceMesh)},
        "rounds": bench.rounds,
        "seconds": bench.seconds,
        "cpu_of": asdict(bench.cpus),
        "notes": bench.notes,
        "scenarios": {s.name: {"title": s.title, "unit": s.unit} for s in bench.scenarios},
        "summary": summary.summarise(samples),
        "targets": [asdict(verdict) for verdict in summary.judge(samples)],
        "samples": [asdict(sample) for sample in samples],
    }
