"""`python -m tests.fuzz TARGET --seconds N`: coverage-guided with atheris where it is installed, blind without.

`--runs N` ends it after so many inputs, and `--seed N` makes them the same again (blind, that is one history). What
breaks a target is printed and kept under `--keep` (default: a folder in the system's place for such). Put its
bytes into `corpus.py` once the bug is understood. Exit code 1 if something broke.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any


def main() -> int:
    """Fuzz one target."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=("stream", "peek", "server", "client"))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--runs", type=int, help="end after so many inputs, too")
    parser.add_argument("--seed", type=int, help="otherwise by chance")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "inferencemesh-fuzz")
    parser.add_argument("--blind", action="store_true", help="do not use atheris")
    chosen = parser.parse_args()
    folder = chosen.keep / chosen.target
    folder.mkdir(parents=True, exist_ok=True)
    runs = sys.maxsize if chosen.runs is None else chosen.runs
    seed = random.randrange(1, 1 << 31) if chosen.seed is None else chosen.seed
    missing = importlib.util.find_spec("atheris") is None
    if chosen.blind or missing:
        if missing and not chosen.blind:
            print(
                f"{chosen.target}: atheris is not installed: going blind, without coverage (CONTRIBUTING.md)"
            )
        return blind(chosen.target, chosen.seconds, runs, seed, folder)
    guided(chosen.target, chosen.seconds, chosen.runs, seed, folder)
    return 0


def blind(target: str, seconds: float, runs: int, seed: int, folder: Path) -> int:
    """Mutants of the corpus."""
    from tests.fuzz.corpus import mutants
    from tests.fuzz.targets import TARGETS

    tried, end_at = 0, time.monotonic() + seconds
    for data in mutants(target, seed):
        if tried >= runs or time.monotonic() > end_at:
            break
        try:
            TARGETS[target](data)
        except Exception as broken:
            path = folder / f"crash-{sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            print(f"{target} broke on {data!r} (kept as {path}): {type(broken).__name__}: {broken}")
            return 1
        tried += 1
    print(f"{target}: {tried} inputs, blind, seed {seed}: nothing broke")
    return 0


def guided(target: str, seconds: int, runs: int | None, seed: int, folder: Path) -> None:
    """With coverage. The fuzzer ends the process itself."""
    atheris: Any = importlib.import_module("atheris")  # optional, and without stubs

    with atheris.instrument_imports(include=["inferencemesh"]):
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.corpus import CORPUS

    seeds = folder / "corpus"
    seeds.mkdir(exist_ok=True)
    for number, data in enumerate(CORPUS[target]):
        (seeds / f"seed-{number}").write_bytes(data)
    options = [
        f"-max_total_time={seconds}",
        f"-runs={-1 if runs is None else runs}",
        f"-seed={seed}",
        "-max_len=4000",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], str(seeds), *options], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
