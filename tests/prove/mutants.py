"""Plant bugs, one at a time, in a copy of the sources, and see that a test notices each.

    python -m tests.prove.mutants              all of them; exit 1 if one survives
    python -m tests.prove.mutants WORD ...     those whose name or file holds one of the words

The chosen tests are first run on an unchanged copy, where they must pass: a test that fails anyway catches nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.prove.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 180.0


@dataclass(frozen=True)
class Verdict:
    """What became of a planted bug: `caught_by` is the first failing test, None if it survived or was not planted."""

    mutation: Mutation
    caught_by: str | None
    seconds: float
    why: str  # what was run, or why nothing was


@contextmanager
def copied() -> Iterator[Path]:
    """The sources in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        yield copy


def planted(mutation: Mutation, copy: Path) -> None:
    """Plant the bug.

    Raises:
        LookupError: the text is not there, or more than once: the mutation is out of date.
    """
    path = copy / "inferencemesh" / mutation.path
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise LookupError(
            f"{mutation.path} holds the text of {mutation.name!r} {text.count(mutation.old)} times"
        )
    path.write_text(text.replace(mutation.old, mutation.new))


def tested(copy: Path, tests: tuple[str, ...]) -> str | None:
    """Run the tests on the sources in `copy`; return the first failure, None if all pass."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "PROVE": ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "120",
        *tests,
    ]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end within {WITHIN_S:.0f} s"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode != 1 and failed is None:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[1] if failed is not None else "the run"


def judged(mutation: Mutation) -> Verdict:
    """Plant one bug and run its tests."""
    began = time.monotonic()
    with copied() as copy:
        try:
            planted(mutation, copy)
        except LookupError as outdated:
            return Verdict(mutation, None, time.monotonic() - began, str(outdated))
        caught = tested(copy, mutation.tests)
    return Verdict(mutation, caught, time.monotonic() - began, " ".join(mutation.tests))


def sound(mutations: Iterable[Mutation]) -> None:
    """Run the chosen tests on an unchanged copy.

    Raises:
        RuntimeError: one fails.
    """
    with copied() as copy, ThreadPoolExecutor(2) as runs:
        for failed in runs.map(lambda tests: tested(copy, tests), {m.tests: None for m in mutations}):
            if failed is not None:
                raise RuntimeError(f"{failed} fails without any planted bug")


def judge(mutations: Sequence[Mutation]) -> Iterator[Verdict]:
    """Judge them in their order; raises as `sound` does."""
    sound(mutations)
    with ThreadPoolExecutor(2) as runs:
        yield from runs.map(judged, mutations)


def main(arguments: list[str]) -> int:
    """Plant the chosen bugs, and fail if one survives."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.prove.mutants",
        description=f"Plant {len(MUTATIONS)} bugs, one at a time in a copy, and see that a test notices each.",
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="only those with this in their name or file")
    words = parser.parse_args(arguments).words
    chosen = [m for m in MUTATIONS if not words or any(w in m.name or w in m.path for w in words)]
    if not chosen:
        names = "\n  ".join(f"{mutation.path}: {mutation.name}" for mutation in MUTATIONS)
        parser.error(f"no bug has {' or '.join(words)} in its name or file; there are\n  {names}")
    caught = 0
    for verdict in judge(chosen):
        what = verdict.mutation
        caught += verdict.caught_by is not None
        print(
            f"{'caught' if verdict.caught_by else 'SURVIVED':9}{verdict.seconds:6.1f} s  {what.path:22} {what.name}"
        )
        print(f"{'':19}{verdict.caught_by or verdict.why}", flush=True)
    print(f"{caught} of {len(chosen)} caught")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
