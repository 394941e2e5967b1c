"""What may be compiled, and what must be written so that it can be."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "inferencemesh"


def _hatch_build() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _functions(name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse((PACKAGE.parent / name).read_text())
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def test_the_lists_name_what_there_is():
    module = _hatch_build()
    sources = module.sources(PACKAGE)
    assert "inferencemesh/core/admission.py" in sources
    assert "inferencemesh/runtime/exchange.py" in sources
    assert not any(source.endswith("__init__.py") for source in sources)
    for name in module.INTERPRETED:
        assert (PACKAGE / name).exists(), name
        assert f"inferencemesh/{name}" not in sources


def test_a_name_stands_for_one_kind_of_exception_in_a_function():
    """mypyc gives a variable the type of its first `except`; another's exception is a TypeError at run time."""
    mixed = []
    for source in _hatch_build().sources(PACKAGE):
        for function in _functions(source):
            kinds: dict[str, set[str]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
                    kinds.setdefault(node.name, set()).add(ast.unparse(node.type))
            mixed += [f"{source}: {function.name}: {name}" for name, of in kinds.items() if len(of) > 1]
    assert mixed == []


@pytest.mark.parametrize(
    ("said", "can", "wanted"),
    [(None, True, True), (None, False, False), ("0", True, False), ("1", False, True), ("", True, True)],
)
def test_it_compiles_where_it_can_unless_told(
    monkeypatch: pytest.MonkeyPatch, said: str | None, can: bool, wanted: bool
) -> None:
    module = _hatch_build()
    if said is None:
        monkeypatch.delenv(module.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(module.VARIABLE, said)
    monkeypatch.setattr(module, "can_compile", lambda: can)
    assert module.wanted() is wanted


def test_without_a_compiler_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc -O2")
    assert not _hatch_build().can_compile()


def test_where_it_fails_unasked_the_sources_are_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = _hatch_build()
    said: list[str] = []

    class App:
        def display_warning(self, text: str) -> None:
            said.append(text)

    def fail(target: Path) -> list[Path]:
        raise RuntimeError("the package could not be compiled")

    monkeypatch.setattr(module, "compile_into", fail)
    monkeypatch.setattr(module, "can_compile", lambda: True)
    hook = module.CompileHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel", App())
    data: dict[str, Any] = {"force_include": {}}
    monkeypatch.delenv(module.VARIABLE, raising=False)
    hook.initialize("standard", data)
    assert data == {"force_include": {}}
    assert "could not be compiled" in said[0]
    monkeypatch.setenv(module.VARIABLE, "1")
    with pytest.raises(RuntimeError):
        hook.initialize("standard", data)
