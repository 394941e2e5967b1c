"""From a file to a checked `Mesh`, or to every reason why not, each with its place.

Stages: YAML → references (`${NAME}`, `{file: PATH}`) → schema → rules over several values → what is not built yet.
Where some values are wrong, the later stages still run on the rest, so that one run shows everything.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from inferencemesh.config import checks, unbuilt
from inferencemesh.config.interpolate import expand
from inferencemesh.config.kinds import nearest
from inferencemesh.config.model import Mesh
from inferencemesh.config.outline import entries, keys_of, section_at
from inferencemesh.config.problems import ConfigError, Path, Problem
from inferencemesh.config.yamlmap import MAX_BYTES, Document, read_yaml

__all__ = ["ConfigError", "Loaded", "from_document", "load", "read"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A usable configuration, and what is odd about it."""

    mesh: Mesh
    warnings: tuple[Problem, ...]


def load(
    path: str | os.PathLike[str],
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Mesh:
    """Load a configuration file; see `read`.

    Raises:
        ConfigError: with every problem.

    """
    return read(path, environ=environ, overrides=overrides).mesh


def read(
    path: str | os.PathLike[str],
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Loaded:
    """Load a configuration file; `-` is standard input.

    `environ` is where `${NAME}` is looked up (default: the process's environment). `overrides` are values of the
    command line by dotted key (`{"server.port": 9000}`), which replace those of the file before anything is checked.

    Raises:
        ConfigError: with every problem.

    """
    file = os.fspath(path)
    document = read_yaml(_raw(file), file)
    expand(document, os.environ if environ is None else environ, FilePath(file).parent)
    return _validated(document, file, overrides or {})


def from_document(data: Mapping[str, Any]) -> Mesh:
    """A configuration from values as a file would hold them. References are not replaced.

    Raises:
        ConfigError: with every problem; they have no lines.

    """
    return _validated(Document(copy.deepcopy(dict(data))), "", {}).mesh


def _raw(file: str) -> bytes:
    try:
        if file == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with open(file, "rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        message = "there is no such file"
    except IsADirectoryError:
        message = "is a directory; name the file in it"
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
    except ValueError:
        message = "is not a file name"
    raise ConfigError(file, [Problem(message)])


def _validated(document: Document, file: str, overrides: Mapping[str, object]) -> Loaded:
    data = document.data
    if not isinstance(data, dict):
        at = document.position(())
        what = "is empty" if data is None else "must be a mapping of sections"
        problem = Problem(f"{what}; it needs at least `backends`", "", *(at or (None, None)))
        raise ConfigError(file, [*document.problems, problem])
    for key, value in overrides.items():
        _put(data, key.split("."), value)
    problems = list(document.problems)
    broken = {problem.path for problem in problems}
    mesh: Mesh | None
    try:
        mesh = Mesh.model_validate(data)
    except ValidationError as error:
        schema = _of_schema(error, document)
        problems += [problem for _, problem in schema if not _inside(problem.path, broken)]
        mesh = _salvaged(data, [path for path, _ in schema])
        broken |= {problem.path for _, problem in schema}
    if mesh is not None:
        for rules in (unbuilt.refused(mesh), checks.errors(mesh)):
            found = [document.problem(path, message) for path, message in rules]
            problems += [problem for problem in found if not _inside(problem.path, broken)]
            broken |= {problem.path for problem in found}
    if problems or mesh is None:
        raise ConfigError(file, problems)
    return Loaded(mesh, tuple(document.problem(path, message) for path, message in checks.warnings(mesh)))


def _put(data: dict[str, Any], keys: list[str], value: object) -> None:
    for key in keys[:-1]:
        inner = data.get(key)
        if not isinstance(inner, dict):
            inner = data[key] = {}
        data = inner
    data[keys[-1]] = value


def _inside(path: str, broken: set[str]) -> bool:
    """Whether the path is one of those, or lies within one: then its problem is a consequence."""
    return any(path == b or path.startswith((f"{b}.", f"{b}[")) for b in broken if b)


def _of_schema(error: ValidationError, document: Document) -> list[tuple[Path, Problem]]:
    """The schema's errors with their places; the path is the one to take out of the data."""
    result: dict[tuple[Path, str], Problem] = {}
    for item in error.errors(include_url=False, include_input=False):
        path, kind = _written_path(item["loc"], document.data), item["type"]
        if kind == "missing":
            path = (*path, str(item["loc"][-1]))
            problem = document.problem(path, "is required")
        elif kind == "extra_forbidden":
            problem = document.problem(path, _unknown(path), key=True)
        else:
            problem = document.problem(path, _message(item))
        result.setdefault((path, problem.message), problem)
    return [(path, problem) for (path, _), problem in result.items()]


def _written_path(loc: tuple[int | str, ...], data: Any) -> Path:
    """The part of a validation error's location that exists in the data."""
    for length, part in enumerate(loc):
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return loc[:length]
    return loc


def _message(item: Any) -> str:
    kind = item["type"]
    if kind == "value_error":
        return str(item["ctx"]["error"])
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a mapping of keys to values"
    if kind == "tuple_type":
        return "must be a list"
    return str(item["msg"])


def _unknown(path: Path) -> str:
    section, key = section_at(path[:-1]), str(path[-1])
    known = list(keys_of(section)) if section is not None else []
    meant = nearest(key, known)
    if meant:
        return f"unknown key; did you mean `{meant}`?"
    homes = [entry.path for entry in entries() if entry.path.rpartition(".")[2] == key]
    if homes:
        return f"unknown key here; there is `{homes[0]}`"
    return f"unknown key; known here: {', '.join(known)}"


def _salvaged(data: dict[str, Any], wrong: list[Path]) -> Mesh | None:
    """The configuration without the wrong values, if what is left can be read."""
    rest = copy.deepcopy(data)
    for path in wrong:
        keys = list(path)
        while keys and isinstance(keys[-1], int):  # the whole list: without one item the others would move
            keys.pop()
        if not keys or (len(keys) == 1 and keys[0] in Mesh.model_fields):
            return None  # without a whole section the rules would blame the innocent
        node: Any = rest
        for part in keys[:-1]:
            node = node.get(part) if isinstance(node, dict) else node[part]
            if not isinstance(node, dict | list):
                break  # something around it is gone already
        if isinstance(node, dict):
            node.pop(keys[-1], None)
    try:
        return Mesh.model_validate(rest)
    except ValidationError:
        return None
