"""Imports point one way (ARCHITECTURE.md, "Layers"), and the core knows neither I/O nor time nor third parties."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "inferencemesh"

# A package may import those it lists, and itself. Anything else points the wrong way.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "wire": {"core"},
    "config": {"core", "wire", "auth"},
    "auth": {"core", "wire"},
    "telemetry": {"core", "config"},
    "runtime": {"core", "wire", "config", "auth"},
    "sim": {"core", "wire", "runtime"},
    "admin": {"core", "config", "telemetry"},
    "serving": {"core", "wire", "config", "auth", "runtime", "telemetry", "admin"},
    "cli": {"core", "wire", "config", "auth", "runtime", "telemetry", "admin", "serving", "sim"},
}
PURE_STDLIB_FORBIDDEN = {
    "asyncio", "concurrent", "datetime", "http", "logging", "multiprocessing", "os", "select", "selectors",
    "signal", "socket", "subprocess", "threading", "time",
}  # fmt: skip


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            found.add(node.module or "")
    return found


def modules(package: str) -> list[Path]:
    return sorted((SRC / package).rglob("*.py"))


def test_every_package_has_a_layer():
    packages = {path.name for path in SRC.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert packages == set(MAY_IMPORT)


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_point_downwards(package: str):
    allowed = MAY_IMPORT[package] | {package}
    wrong = [
        f"{path.relative_to(SRC)} imports {name}"
        for path in modules(package)
        for name in imports_of(path)
        if name.startswith("inferencemesh.") and name.split(".")[1] not in allowed
    ]
    assert wrong == []
    assert modules(package)


def test_the_core_is_pure():
    wrong = []
    for path in modules("core"):
        for name in imports_of(path):
            top = name.split(".")[0]
            if top in PURE_STDLIB_FORBIDDEN or top not in sys.stdlib_module_names | {"inferencemesh"}:
                wrong.append(f"{path.name} imports {name}")
        tree = ast.parse(path.read_text())
        wrong += [
            f"{path.name}:{node.lineno} awaits"
            for node in ast.walk(tree)
            if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith)
        ]
    assert wrong == []


def test_no_module_outside_the_shell_uses_asyncio():
    pure = ("core", "wire", "config", "auth")
    wrong = [str(path) for package in pure for path in modules(package) if "asyncio" in imports_of(path)]
    assert wrong == []
