"""`make bench`: the gateways side by side in one run.

python -m bench.run [--quick] [--peers direct,envoy,inferencemesh] [--json FILE] [--plot FILE.svg]
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.measure import SCENARIOS, Bench, Cpus, report
from bench.peers import PEERS, ROOT, Peer, envoy_binary
from bench.summary import OURS, Sample, judge, missed
from bench.tables import tables

OPEN_FILES = 20_000


def _names(text: str, known: dict[str, Any], what: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def _present(names: list[str], console: Console) -> list[type[Peer]]:
    kinds = []
    for name in names:
        reason = PEERS[name].missing()
        if reason is None:
            kinds.append(PEERS[name])
        else:
            console.print(f"[yellow]skipped[/] {reason}", highlight=False)
    return kinds


def versions() -> dict[str, str]:
    """Which versions are compared, as their programs say."""
    found: dict[str, str] = {}
    asked = {
        "nginx": ["nginx", "-v"],
        "haproxy": ["haproxy", "-v"],
        "envoy": [envoy_binary() or "envoy", "--version"],
        OURS: ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
    }
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    for name, command in asked.items():
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
                env={**os.environ, "PATH": path},
            )
        except OSError:
            continue
        lines = (done.stdout + done.stderr).strip().splitlines()
        if done.returncode == 0 and lines:
            found[name] = lines[0].strip()
    return found


@click.command(help=__doc__)
@click.option("--peers", default=",".join(PEERS), show_default=True, help="Which gateways, in this order.")
@click.option("--scenarios", default=",".join(SCENARIOS), show_default=True)
@click.option("--rounds", type=click.IntRange(1, 50), help="Default 5, with --quick 2.")
@click.option(
    "--seconds", type=click.FloatRange(0.2, 20), help="Of each window; default 2, with --quick 0.7."
)
@click.option("--quick", is_flag=True, help="About two minutes; for a look, not for figures to quote.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write every sample there.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Draw into an .svg or .png file.")
@click.option("--no-pin", is_flag=True, help="Leave it to the scheduler who runs on which CPU.")
@click.option("--check", is_flag=True, help="Exit with 1 if a target is met by no form that was measured.")
def main(
    peers: str,
    scenarios: str,
    rounds: int | None,
    seconds: float | None,
    quick: bool,
    json_file: Path | None,
    plot_file: Path | None,
    no_pin: bool,
    check: bool,
) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # into a file: room for every column
    kinds = _present(_names(peers, PEERS, "peer"), console)
    chosen = [SCENARIOS[name] for name in _names(scenarios, SCENARIOS, "scenario")]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = OPEN_FILES if limit == resource.RLIM_INFINITY else min(OPEN_FILES, limit)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, limit))
    cpus = Cpus.choose(sorted(os.sched_getaffinity(0)), pin=not no_pin)
    if cpus.gateway is None:
        console.print("[yellow]not pinned:[/] gateway and load share CPUs; trust no figure but a rough ratio")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        bench = Bench(
            folder=Path(folder),
            peers=kinds,
            scenarios=chosen,
            rounds=rounds or (2 if quick else 5),
            seconds=seconds or (0.7 if quick else 2.0),
            quick=quick,
            cpus=cpus,
        )
        samples = _watch(bench, console)
        result = report(bench, samples, versions())
    for table in tables(result):
        console.print(table)
    _tell(result, samples, console)
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    if plot_file is not None:
        from bench.plot import draw

        draw(result, plot_file)
    if any(sample.fault_count for sample in samples) or (check and missed(judge(samples))):
        sys.exit(1)


def _watch(bench: Bench, console: Console) -> list[Sample]:
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        task = progress.add_task("starting", total=bench.steps)

        def on_step(peer: str, scenario: str, number: int) -> None:
            progress.update(task, description=f"round {number + 1}/{bench.rounds}  {scenario:8} {peer:14}")

        def on_sample(sample: Sample) -> None:
            progress.advance(task)

        bench.on_step, bench.on_sample = on_step, on_sample
        return bench.run()


def _tell(result: dict[str, Any], samples: list[Sample], console: Console) -> None:
    for name, form in result["forms"].items():
        console.print(f"measured as {name}: the {form} form", highlight=False)
    for note in result["notes"]:
        console.print(f"[yellow]note[/] {note}", highlight=False)
    for sample in samples:
        if sample.fault_count:
            console.print(
                f"[red]{sample.fault_count} wrong answers[/] {sample.peer} {sample.scenario}: {sample.faults[:1]}",
                highlight=False,
            )


if __name__ == "__main__":
    main()
