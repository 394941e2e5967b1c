"""YAML text → plain values, and for each the place where it was written.

Only safe nodes are composed; nothing is constructed by tag. Scalars follow YAML 1.2 (and so JSON): `on`, `no` and
`12:30` are text. Depth, number of values after aliases, and size are bounded, so a small file cannot become a
large one. Anchors, aliases and merge keys (`<<`) work; a key that is written twice is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from inferencemesh.config.problems import ConfigError, Path, Problem, path_text

MAX_BYTES = 2 << 20  # some 10,000 tenants with their keys
MAX_DEPTH = 32  # the schema has 5 levels
MAX_VALUES = 100_000

_TAG = "tag:yaml.org,2002:"


class Position(NamedTuple):
    """A place in the file; both count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Document:
    """The values of a file. Errors about an unknown key point at the key, others at the value."""

    data: object
    values: dict[Path, Position] = field(default_factory=dict)
    keys: dict[Path, Position] = field(default_factory=dict)
    quoted: set[Path] = field(default_factory=set)  # text that was written in quotes or as a block
    problems: list[Problem] = field(default_factory=list)

    def position(self, path: Path, *, key: bool = False) -> Position | None:
        """Where this path, or else the nearest thing around it, stands."""
        if key and path in self.keys:
            return self.keys[path]
        for length in range(len(path), -1, -1):
            found = self.values.get(path[:length])
            if found is not None:
                return found
        return None

    def problem(self, path: Path, message: str, *, key: bool = False) -> Problem:
        """A problem at the place of this path."""
        at = self.position(path, key=key)
        return Problem(message, path_text(path), at.line if at else None, at.column if at else None)


def read_yaml(raw: bytes, file: str) -> Document:
    """Read one YAML document.

    Raises:
        ConfigError: it is not UTF-8, not YAML, empty, too large, or too deep.

    """
    text = _decode(raw, file)
    if text.lstrip()[:1] in ("{", "["):
        text = _without_tabs_of_json(text)
    try:
        root = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = error.problem or error.context or "is not YAML"
        if "'\\t'" in message:
            message += " (YAML is indented with blanks, not tabs)"
        elif "expected a single document" in (error.context or ""):
            message = "holds more than one document (`---`); write one"
        elif mark and any("${" in line for line in text.split("\n")[mark.line : mark.line + 1]):
            message += " (inside { } or [ ] a `${NAME}` needs quotes)"
        at = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise ConfigError(file, [Problem(message, "", *at)]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        at = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise ConfigError(file, [Problem("holds a character that YAML does not allow", "", *at)]) from None
    if root is None:
        raise ConfigError(file, [Problem("is empty; it needs at least `backends`")])
    return _Reading(file).read(root)


def _decode(raw: bytes, file: str) -> str:
    if len(raw) > MAX_BYTES:
        raise ConfigError(file, [Problem(f"is larger than {MAX_BYTES >> 20}MiB; is it the right file?")])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = raw[: error.start]
        line = good.count(b"\n") + 1
        column = len(good[good.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        raise ConfigError(file, [Problem("is not UTF-8 text", "", line, column)]) from None


def _without_tabs_of_json(text: str) -> str:
    """JSON may be indented with tabs, YAML may not. JSON holds no raw tab inside a string."""
    if "\t" not in text:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


class _Loader(yaml.SafeLoader):
    """Composes nodes; resolves plain scalars as YAML 1.2 does; refuses what is too deep."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._nodes += 1
        if self._depth >= MAX_DEPTH or self._nodes > MAX_VALUES:
            what = "is nested too deeply" if self._depth >= MAX_DEPTH else "holds too many values"
            raise yaml.composer.ComposerError(None, None, what, event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _implicit(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"{_TAG}{tag}", re.compile(pattern, re.ASCII), list(first))


_implicit("null", r"(?:~|null|Null|NULL|)\Z", "~nN")
_Loader.yaml_implicit_resolvers.setdefault("", []).append((f"{_TAG}null", re.compile(r"\Z")))
_implicit("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", "tTfF")
_implicit("int", r"(?:[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+)\Z", "-+0123456789")
_implicit("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", "-+.0123456789")
_implicit("float", r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z", "-+.")
_implicit("merge", r"<<\Z", "<")
RESOLVERS = _Loader.yaml_implicit_resolvers


def _read_int(text: str) -> int:
    if len(text) > 64:
        raise ValueError
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0o") else 10
    return sign * int(digits[2:] if base != 10 else digits, base)


def _read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


_SCALARS: dict[str, Callable[[str], object]] = {
    f"{_TAG}null": lambda text: None,
    f"{_TAG}bool": _read_bool,
    f"{_TAG}int": _read_int,
    f"{_TAG}float": lambda text: float(re.sub(r"\.(inf|nan)", r"\1", text.lower())),
    f"{_TAG}str": lambda text: text,
}


class _Reading:
    """One walk over the nodes."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._document = Document(None)
        self._open: set[int] = set()
        self._values = 0

    def read(self, root: Node) -> Document:
        self._document.data = self._value(root, ())
        return self._document

    def _value(self, node: Node, path: Path) -> object:
        document = self._document
        at = Position(node.start_mark.line + 1, node.start_mark.column + 1)
        document.values[path] = at
        self._count(path, at)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            raise ConfigError(
                self._file, [Problem("is an alias of something around it", path_text(path), *at)]
            )
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            document.problems.append(document.problem(path, f"the tag {_short(node.tag)} is not allowed"))
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _count(self, path: Path, at: Position) -> None:
        self._values += 1
        if self._values > MAX_VALUES or len(path) > MAX_DEPTH:
            raise ConfigError(self._file, [Problem("grows too large by its aliases", path_text(path), *at)])

    def _scalar(self, node: ScalarNode, path: Path) -> object:
        document = self._document
        if node.style is not None:
            document.quoted.add(path)
        read = _SCALARS.get(node.tag)
        if read is None:
            document.problems.append(document.problem(path, f"the tag {_short(node.tag)} is not allowed"))
            return None
        try:
            value = read(node.value)
            return _joined(value) if isinstance(value, str) else value
        except ValueError:
            document.problems.append(document.problem(path, f"is not a {node.tag.removeprefix(_TAG)}"))
            return None

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        document = self._document
        result: dict[str, object] = {}
        merges: list[tuple[Node, Position]] = []
        for key_node, value_node in node.value:
            at = Position(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if key_node.tag == f"{_TAG}merge":
                merges.append((value_node, at))
                continue
            key = _key(key_node)
            if key is None:
                document.problems.append(Problem("a key must be text", path_text(path), *at))
                continue
            here = (*path, key)
            if key in result:
                first = document.keys[here].line
                document.problems.append(
                    Problem(f"is written twice; the first is in line {first}", path_text(here), *at)
                )
                continue
            document.keys[here] = at
            result[key] = self._value(value_node, here)
        for merge, at in merges:
            self._merge(merge, at, path, result)
        return result

    def _merge(self, node: Node, at: Position, path: Path, result: dict[str, object]) -> None:
        """`<<: *other`: keys that are not written here are taken from there; the first source wins."""
        for source in node.value if isinstance(node, SequenceNode) else [node]:
            self._count(path, at)
            if not isinstance(source, MappingNode):
                self._document.problems.append(Problem("`<<` takes a mapping", path_text(path), *at))
                continue
            if id(source) in self._open:
                raise ConfigError(
                    self._file, [Problem("is an alias of something around it", path_text(path), *at)]
                )
            missing = [
                pair for pair in source.value if pair[0].tag == f"{_TAG}merge" or _key(pair[0]) not in result
            ]
            self._open.add(id(source))
            try:
                result.update(self._mapping(MappingNode(source.tag, missing, source.start_mark), path))
            finally:
                self._open.discard(id(source))


def _key(node: Node) -> str | None:
    """The text of a key, None if it is no text."""
    try:
        return _joined(node.value) if isinstance(node, ScalarNode) else None
    except ValueError:
        return None


def _joined(text: str) -> str:
    """Join the two halves of a character that JSON escapes as a surrogate pair.

    Raises:
        ValueError: a half stands alone.

    """
    if not any("\ud800" <= c <= "\udfff" for c in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _short(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
