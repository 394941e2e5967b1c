"""What is wrong with a configuration, and where: one line per problem, all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Path = tuple[str | int, ...]


def path_text(path: Path) -> str:
    """Write a path as people do: `backends[0].slots`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if part.isprintable() else repr(part)
            text += f".{shown}" if text else shown
    return text


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `line` and `column` count from 1; None where no place in a file is to blame."""

    message: str
    path: str = ""
    line: int | None = None
    column: int | None = None

    def render(self, file: str) -> str:
        """`file:line:column: path: message`, without the parts that are unknown."""
        where = file
        if self.line is not None:
            where += f":{self.line}"
            if self.column is not None:
                where += f":{self.column}"
        parts = [part for part in (where, self.path, self.message) if part]
        return ": ".join(parts)


class ConfigError(Exception):
    """The configuration cannot be used. `problems` holds every reason, in the order of the file.

    `file` is the name that the messages give; empty for a configuration that is no file.
    """

    def __init__(self, file: str, problems: Iterable[Problem]) -> None:
        self.file = file
        self.problems = tuple(sorted(problems, key=lambda p: (p.line or 0, p.column or 0)))
        super().__init__(file, self.problems)

    def __str__(self) -> str:
        return "\n".join(problem.render(self.file) for problem in self.problems)
