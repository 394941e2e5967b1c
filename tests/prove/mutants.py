"""Plant bugs, one at a time, in a copy of the sources, and see that a test notices each.

    python -m tests.prove.mutants              all of them; exit 1 if one survives
    python -m tests.prove.mutants WORD ...     those whose name or file holds one of the words

The chosen tests are first run on an unchanged copy, where they must pass: a test that fails anyway catches nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.prove.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 180.0


@dataclass(frozen=True)
class Verdict:
    """What became of a planted bug: `caught_by` is the first failing test, None if it survived."""

    mutation: Mutation
    caught_by: str | None
    seconds: float


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
        planted(mutation, copy)
        caught = tested(copy, mutation.tests)
    return Verdict(mutation, caught, time.monotonic() - began)


def sound(mutations: tuple[Mutation, ...]) -> None:
    """Run the chosen tests on an unchanged copy.

    Raises:
        RuntimeError: one fails.
    """
    with copied() as copy, ThreadPoolExecutor(2) as runs:
        for failed in runs.map(lambda tests: tested(copy, tests), {m.tests: None for m in mutations}):
            if failed is not None:
                raise RuntimeError(f"{failed} fails without any planted bug")


def judge_all(words: list[str]) -> list[Verdict]:
    """Judge all, or those whose name or file holds one of the words."""
    chosen = tuple(m for m in MUTATIONS if not words or any(w in m.name or w in m.path for w in words))
    sound(chosen)
    with ThreadPoolExecutor(2) as runs:
        return list(runs.map(judged, chosen))


def main(words: list[str]) -> int:
    verdicts = judge_all(words)
    for verdict in verdicts:
        what = verdict.mutation
        print(
            f"{'caught' if verdict.caught_by else 'SURVIVED':9}{verdict.seconds:6.1f} s  {what.path:22} {what.name}"
        )
        print(f"{'':19}{verdict.caught_by or ' '.join(what.tests)}")
    survived = sum(verdict.caught_by is None for verdict in verdicts)
    print(f"{len(verdicts) - survived} of {len(verdicts)} caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
