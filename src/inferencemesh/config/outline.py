"""The schema as data: every key with its kind, default and meaning; and as JSON Schema for editors."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from inferencemesh.config.kinds import Kind
from inferencemesh.config.model import Mesh
from inferencemesh.config.problems import Path
from inferencemesh.config.section import Section


@dataclass(frozen=True, slots=True)
class Entry:
    """One key: a section, a list or mapping, or a value. `path` marks lists with `[]`."""

    path: str
    field: FieldInfo
    type: Any  # without Annotated and null
    kind: Kind | None  # None: a section, or a list or mapping
    nullable: bool

    @property
    def section(self) -> type[Section] | None:
        """The class of a section or of the sections in a list."""
        return _section_in(self.type)

    @property
    def override(self) -> bool:
        """Whether this repeats a section that is described elsewhere, to override it."""
        return self.nullable and self.section is not None


def entries(section: type[Section] = Mesh, prefix: str = "") -> Iterator[Entry]:
    """Every key in the order of the file; of an override only the key itself."""
    for entry in keys_of(section, prefix).values():
        yield entry
        inner = entry.section
        if inner is not None and not entry.override:
            yield from entries(inner, entry.path + ("[]" if get_origin(entry.type) is tuple else ""))


def keys_of(section: type[Section], prefix: str = "") -> dict[str, Entry]:
    """The keys of one section as they are written."""
    found: dict[str, Entry] = {}
    for name, field in section.model_fields.items():
        key = field.alias or name
        kind, bare, nullable = _taken_apart(field)
        found[key] = Entry(f"{prefix}.{key}" if prefix else key, field, bare, kind, nullable)
    return found


def section_at(path: Path) -> type[Section] | None:
    """The class of the section that stands at this path of a file."""
    section: type[Section] | None = Mesh
    for part in path:
        if isinstance(part, int) or section is None:
            continue
        entry = keys_of(section).get(part)
        section = entry.section if entry is not None else None
    return section


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file, with descriptions and defaults."""
    schema = Mesh.model_json_schema(by_alias=True)
    _tidy(schema)
    for section in {entry.section for entry in entries()} | {Mesh}:
        if section is not None:
            described = schema if section is Mesh else schema["$defs"][section.__name__]
            _describe(section, described["properties"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "InferenceMesh configuration (mesh.yaml)",
        **schema,
    }


def _tidy(node: Any) -> None:
    """Drop the titles that are made from class names; they say nothing that the key does not."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
    elif isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for item in node.values():
            _tidy(item)


def _describe(section: type[Section], properties: dict[str, Any]) -> None:
    """Give each key its description, and its default as a file would hold it: `10s`, not 10.0."""
    for key, entry in keys_of(section).items():
        properties[key]["description"] = entry.field.description
        default = entry.field.default
        if default is PydanticUndefined:
            continue
        if isinstance(default, Section):
            default = default.model_dump(mode="json", by_alias=True)
        elif isinstance(default, tuple):
            default = [
                i.model_dump(mode="json", by_alias=True) if isinstance(i, Section) else i for i in default
            ]
        elif entry.kind is not None and default is not None and default != "auto":
            default = entry.kind.show(default)
        properties[key]["default"] = default


def _taken_apart(field: FieldInfo) -> tuple[Kind | None, Any, bool]:
    kind = next((m for m in field.metadata if isinstance(m, Kind)), None)
    bare: Any = field.annotation
    nullable = False
    if get_origin(bare) in (types.UnionType, Union):
        inner = [arg for arg in get_args(bare) if arg is not types.NoneType]
        nullable = len(inner) < len(get_args(bare))
        if nullable and len(inner) == 1:
            bare = inner[0]
    if hasattr(bare, "__metadata__"):
        kind = kind or next((m for m in bare.__metadata__ if isinstance(m, Kind)), None)
        bare = bare.__origin__
    return kind, bare, nullable


def _section_in(kind: Any) -> type[Section] | None:
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind
    if get_origin(kind) is tuple and get_args(kind):
        return _section_in(get_args(kind)[0])
    return None
