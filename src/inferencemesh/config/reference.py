"""The table of every key in docs/configuration.md, made from the schema so that it cannot drift.

`python -m inferencemesh.config.reference docs/configuration.md` writes it anew between its two marks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_origin

from pydantic_core import PydanticUndefined

from inferencemesh.config.kinds import Kind
from inferencemesh.config.model import Mesh
from inferencemesh.config.outline import Entry, keys_of
from inferencemesh.config.section import Section
from inferencemesh.config.unbuilt import UNBUILT

BEGIN = "<!-- reference: made by `python -m inferencemesh.config.reference`; edit the schema instead -->"
END = "<!-- end of the reference -->"

_UNBUILT = {row.path: row.instead for row in UNBUILT}


def reference() -> str:
    """One Markdown table per section, in the order of the file."""
    parts = ["### At the top", "", *_table(keys_of(Mesh).values())]
    for entry in keys_of(Mesh).values():
        parts += _section(entry)
    return "\n".join(parts).rstrip() + "\n"


def updated(text: str) -> str:
    """The document with the reference between its marks written anew.

    Raises:
        ValueError: a mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks the mark {BEGIN if not begin else END}")
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def _section(entry: Entry) -> list[str]:
    section = entry.section
    if section is None or entry.override:
        return []
    prefix = entry.path + ("[]" if get_origin(entry.type) is tuple else "")
    keys = keys_of(section, prefix)
    parts = [f"### `{prefix}`", "", _sentence(section), "", *_table(keys.values())]
    for inner in keys.values():
        parts += _section(inner)
    return parts


def _sentence(section: type[Section]) -> str:
    return " ".join((section.__doc__ or "").split())


def _table(entries: Iterable[Entry]) -> list[str]:
    rows = ["| key | kind | default | meaning |", "| --- | --- | --- | --- |"]
    rows += [_row(entry) for entry in entries]
    return [*rows, ""]


def _row(entry: Entry) -> str:
    key = entry.path.rpartition(".")[2]
    meaning = entry.field.description or ""
    if entry.path in _UNBUILT:
        meaning += f" *Other values are not built yet: {_UNBUILT[entry.path]}.*"
    return f"| `{key}` | {_kind(entry)} | {_default(entry)} | {meaning} |"


def _kind(entry: Entry) -> str:
    if entry.override:
        return "section or null"
    if entry.section is not None:
        return "list of sections" if get_origin(entry.type) is tuple else "section"
    if get_origin(entry.type) is dict:
        return "mapping"
    word = entry.kind.word if entry.kind is not None else f"list of {_item(entry.type).word}"
    if entry.kind is not None and entry.kind.auto:
        word += " or `auto`"
    return f"{word} or null" if entry.nullable else word


def _item(of: Any) -> Kind:
    return next(m for m in of.__args__[0].__metadata__ if isinstance(m, Kind))


def _default(entry: Entry) -> str:
    default = entry.field.default
    if default is PydanticUndefined:
        return "**required**"
    if isinstance(default, Section):
        return ""
    if isinstance(default, tuple) and default and isinstance(default[0], Section):
        return ", ".join(f"`{item.name}`" for item in default)  # the classes
    if default is None or default == "auto":
        return f"`{'null' if default is None else default}`"
    if entry.kind is not None:
        shown = entry.kind.show(default)
        return f"`{json.dumps(shown) if isinstance(shown, bool) else shown}`"
    if isinstance(default, tuple):
        return f"`[{', '.join(json.dumps(item) if item == '*' else str(item) for item in default)}]`"
    return "`{}`"


if __name__ == "__main__":
    for _name in sys.argv[1:]:
        _file = Path(_name)
        _file.write_text(updated(_file.read_text(encoding="utf-8")), encoding="utf-8")
