"""`make fairness`: one seeded load of four tenants under each policy, over real sockets.

A flood of long streams, a flood of short ones, a tenant of weight 2 and one with a small request now and then share
eight slots of the simulated model server. The gateway, the server and the callers run in this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import logging
import platform
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console
from rich.table import Table

from bench.shares import figures
from bench.tenants import CROWDS, Load
from inferencemesh.config.load import from_document
from inferencemesh.serving.gateway import Gateway
from inferencemesh.sim.server import SimServer
from inferencemesh.telemetry.log import Log

SLOTS = 8
PLACES = 32
MODEL = "demo"
POLICIES = ("fifo", "sfq", "slots")
WARM_REQUESTS = 40
SEED = 7


@dataclass(frozen=True)
class Plan:
    """How long each policy is measured, after it has been under load for a while."""

    settle_s: float
    seconds: float


FULL = Plan(5.0, 30.0)
QUICK = Plan(1.0, 3.0)


def document(policy: str, sim_url: str) -> dict[str, Any]:
    """The gateway's configuration: the defaults, but for the length of the line and the policy."""
    return {
        "server": {"port": 0},
        "backends": [{"name": "sim", "url": sim_url, "engine": "sim", "slots": SLOTS}],
        "models": [{"name": MODEL, "backends": ["sim"]}],
        "admission": {
            "queue": {"max_waiting": PLACES, "timeout": "30s"},
            "fairness": {"policy": policy, "unit": "slot_seconds"},
        },
        "tenants": [
            {
                "name": crowd.name,
                "weight": crowd.weight,
                "keys": [{"sha256": hashlib.sha256(f"key-{crowd.name}".encode()).hexdigest()}],
            }
            for crowd in CROWDS
        ],
    }


class Progress:
    """One line that is written over on a terminal; elsewhere a line for each policy."""

    def __init__(self, runs: int, seconds: float, *, quiet: bool) -> None:
        self._terminal = sys.stderr.isatty() and not quiet
        self._quiet = quiet
        self._total_s = runs * seconds
        self._began_at = time.monotonic()
        self._said = ""

    def say(self, policy: str, load: Load | None) -> None:
        done_s = time.monotonic() - self._began_at
        asks = load.asks if load is not None else []
        served = sum(ask.ended_at is not None for ask in asks)
        refused = sum(len(ask.refusals) for ask in asks)
        if self._terminal:
            text = f"{done_s:4.0f} of about {self._total_s:.0f} s  {policy:5}  {served} served, {refused} refused"
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        elif not self._quiet and policy != self._said:
            sys.stderr.write(f"{policy} … ({done_s:.0f} of about {self._total_s:.0f} s)\n")
        self._said = policy

    def end(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")


async def measure(policy: str, plan: Plan, progress: Progress, *, seed: int = SEED) -> dict[str, Any]:
    """One run under `policy`: what each tenant got."""
    sim = SimServer(slots=SLOTS, queue=0, seed=seed, models=[MODEL])
    await sim.start("127.0.0.1", 0)
    log = Log(io.StringIO(), format="json")
    gateway = Gateway(from_document(document(policy, sim.url)), log, seed=seed)
    await gateway.start()
    load = Load(gateway.port, MODEL, seed)
    try:
        progress.say(policy, None)
        await load.warm(WARM_REQUESTS, SLOTS)
        load.start()
        began_at = time.monotonic()
        begin = began_at + plan.settle_s
        end = begin + plan.seconds
        while time.monotonic() < end:
            await asyncio.sleep(min(0.2, max(0.0, end - time.monotonic())))
            load.check()
            progress.say(policy, load)
        await load.stop()
        gateway.admission.check()
    finally:
        await gateway.kill()
        await sim.close()
        log.close()
    asks = [ask for ask in load.asks if ask.first_at < end]
    return {"seconds": plan.seconds, "tenants": figures(asks, CROWDS, SLOTS, begin, end)}


async def measure_all(plan: Plan, progress: Progress) -> dict[str, Any]:
    """The same load under each policy, one after the other."""
    runs = {}
    for policy in POLICIES:
        runs[policy] = await measure(policy, plan, progress)
    return {
        "slots": SLOTS,
        "places": PLACES,
        "unit": "slot_seconds",
        "seed": SEED,
        "python": platform.python_version(),
        "policies": runs,
    }


def table(result: dict[str, Any]) -> Table:
    """The figures for a terminal: a row for each tenant and policy."""
    drawn = Table(title=f"{SLOTS} slots, {PLACES} places, unit slot_seconds")
    drawn.add_column("tenant")
    heads = (
        "share",
        "of its due",
        "wait p50",
        "wait p95",
        "content p50",
        "content p95",
        "served",
        "refusals",
    )
    drawn.add_column("policy")
    for head in heads:
        drawn.add_column(head, justify="right")
    for crowd in CROWDS:
        drawn.add_section()
        for policy, run in result["policies"].items():
            one = run["tenants"][crowd.name]
            name = f"{crowd.name} (weight {crowd.weight:g})" if policy == POLICIES[0] else ""
            drawn.add_row(name, policy, *cells(one))
    return drawn


def cells(one: dict[str, Any]) -> list[str]:
    """A tenant's figures as text, in the order of the table."""

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f} s"

    return [
        f"{100 * one['share']:.0f} %",
        "-" if one["of_its_due"] is None else f"{100 * one['of_its_due']:.0f} %",
        seconds(one["wait_p50_s"]),
        seconds(one["wait_p95_s"]),
        seconds(one["first_content_p50_s"]),
        seconds(one["first_content_p95_s"]),
        str(one["served"]),
        str(one["refusals"]),
    ]


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="About 20 s in all: for a look, not for figures to quote.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON and nothing else.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for fairness.json and .svg."
)
def main(quick: bool, as_json: bool, out: Path | None) -> None:
    logging.disable(logging.WARNING)  # callers that leave at a run's end are no news
    plan = QUICK if quick else FULL
    progress = Progress(len(POLICIES), plan.settle_s + plan.seconds + 1.5, quiet=as_json)
    result = uvloop.run(measure_all(plan, progress))
    progress.end()
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        console = Console()
        (console if console.is_terminal else Console(width=120)).print(table(result))
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    (out / "fairness.json").write_text(json.dumps(result, indent=1) + "\n")
    if find_spec("matplotlib") is None:
        click.echo("no picture without matplotlib: pip install 'inferencemesh[bench]'", err=True)
        return
    from bench.fairplot import draw

    draw(result, out / "fairness.svg")


if __name__ == "__main__":
    main()
