"""Compile the data path's modules to C extensions (docs/deployment.md, "Speed"). Nothing needs it.

As a build hook of hatchling it does so where a C compiler and Python's headers are found, and the wheel is then one of
this platform and this Python. INFERENCEMESH_COMPILE=0 leaves it out; with 1 it is an error where it cannot be done. An
editable install is never compiled. As a program it makes a compiled copy of the package beside the sources, which stay
as they are:

    python hatch_build.py build/compiled
    PYTHONPATH=build/compiled inferencemesh serve …

It needs mypy's compiler (mypyc), setuptools, a C compiler and Python's headers. The .py files stay beside the
extensions: what is not compiled imports them, and tracebacks show them.
"""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
PACKAGE = "inferencemesh"
VARIABLE = "INFERENCEMESH_COMPILE"
COMPILED = (
    "core/*.py",
    "wire/*.py",
    "auth/*.py",
    "runtime/*.py",
    "runtime/http1/*.py",
    "telemetry/aggregate.py",
    "telemetry/hub.py",
    "telemetry/lines.py",
    "telemetry/recent.py",
)
# mypyc cannot, or it would gain nothing.
INTERPRETED = frozenset(
    (
        "core/check.py",  # for tests
        "core/errors.py",  # an exception that is a dataclass with slots
        "runtime/build.py",  # runs once
        "runtime/drain.py",  # seldom runs
        "runtime/garbage.py",  # runs once
        "runtime/http1/client.py",  # holds nothing
        "runtime/http1/lost.py",  # descends from OSError
        "runtime/http1/server.py",  # once a connection; and where the tests put other networks
        "runtime/http1/sockets.py",  # system calls
        "runtime/http1/stamp.py",  # where the tests put another clock
        "runtime/limits.py",  # runs once
        "runtime/probes.py",  # seldom runs
        "runtime/settings.py",  # runs once
    )
)


def sources(package: Path) -> list[str]:
    """The modules to compile, relative to the package's parent."""
    found = sorted({path for pattern in COMPILED for path in package.glob(pattern)})
    return [
        path.relative_to(package.parent).as_posix()
        for path in found
        if path.name != "__init__.py" and path.relative_to(package).as_posix() not in INTERPRETED
    ]


def compile_into(target: Path) -> list[Path]:
    """Make `target`/inferencemesh a compiled copy of the package; return the extensions.

    Raises:
        RuntimeError: it could not be compiled; what the compilers said is on the standard error.
    """
    if target.exists():
        shutil.rmtree(target)
    package = target / PACKAGE
    shutil.copytree(ROOT / "src" / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    with tempfile.TemporaryDirectory(prefix="compile-") as scratch:
        # A process of its own, since mypyc works in the current directory and setuptools on sys.argv.
        command = [sys.executable, str(Path(__file__).resolve()), "--here", scratch, *sources(package)]
        if subprocess.run(command, cwd=target, check=False).returncode != 0:  # noqa: S603 - this very file
            raise RuntimeError("the package could not be compiled")
    return sorted(target.rglob("*.so"))


def _compile_here(scratch: str, files: list[str]) -> None:
    from mypyc.build import mypycify
    from setuptools import setup

    inspect.Signature = _Signature  # type: ignore[misc]
    extensions = mypycify(
        ["--ignore-missing-imports", "--cache-dir", f"{scratch}/mypy", *files],
        opt_level="2",
        debug_level="0",
        group_name=PACKAGE,
        target_dir=f"{scratch}/c",
    )
    jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    command = [
        "-q",
        "build_ext",
        "--inplace",
        "-j",
        jobs,
        "--build-temp",
        f"{scratch}/o",
        "--build-lib",
        f"{scratch}/l",
    ]
    setup(name=PACKAGE, packages=[], ext_modules=extensions, script_args=command)


class _Signature(inspect.Signature):
    """mypyc takes keyword-only parameters for positional ones when it writes a function's docstring, and stops."""

    def __init__(self, parameters: Any = None, **options: Any) -> None:
        try:
            super().__init__(parameters, **options)
        except ValueError:
            super().__init__([])


def _main(arguments: list[str]) -> int:
    if arguments[:1] == ["--here"]:
        _compile_here(arguments[1], arguments[2:])
        return 0
    target = Path(arguments[0] if arguments else "build/compiled").resolve()
    try:
        made = compile_into(target)
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{len(made)} extensions; PYTHONPATH={target} uses them\n")
    return 0


class CompileHook(BuildHookInterface[Any]):
    """Puts the extensions into the wheel, when asked to."""

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling."""
        return ["mypy>=2.0", "setuptools"] if wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the wheel after this platform."""
        if not wanted() or version == "editable":
            return
        target = Path(self.directory) / "compiled"
        try:
            extensions = compile_into(target)
        except (RuntimeError, OSError) as error:
            if os.environ.get(VARIABLE) == "1":
                raise
            self.app.display_warning(f"{error}: installed as it is, which is slower and otherwise the same")
            return
        for made in extensions:
            build_data["force_include"][str(made)] = made.relative_to(target).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def wanted() -> bool:
    """Whether the wheel is to be compiled: as INFERENCEMESH_COMPILE says (1 or 0), else where it can be."""
    said = os.environ.get(VARIABLE)
    return said == "1" if said in ("0", "1") else can_compile()


def can_compile() -> bool:
    """Whether there are a C compiler and Python's headers."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return shutil.which(os.environ.get("CC", compiler).split()[0]) is not None and headers.is_file()


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
