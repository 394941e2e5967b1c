"""Reading the documents: fenced blocks, headings, links, table rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")), *DOCS.glob("*.md")]
)

_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block; `name` says where it stands."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, language: str | None = None) -> Iterator[Block]:
    """The fenced blocks of a page, in one language or in all."""
    text = page.read_text()
    for match in _FENCE.finditer(text):
        block = Block(page, text.count("\n", 0, match.start()) + 2, match[1].strip(), match[2])
        if language is None or block.language == language:
            yield block


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """The targets of all links that lead to files or headings of the project."""
    return [
        target
        for target in _LINK.findall(prose(page))
        if not target.startswith(("http://", "https://", "mailto:"))
    ]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the page's headings."""
    titles = re.findall(r"^#{1,6} +(.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def section(page: Path, title: str) -> str:
    """The text under a heading, up to the next one of the same or a higher level."""
    text = page.read_text()
    found = re.search(rf"^(#+) {re.escape(title)}$", text, re.MULTILINE)
    assert found is not None, f"{page.name} has no section {title!r}"
    end = re.compile(rf"^#{{1,{len(found[1])}}} ", re.MULTILINE).search(text, found.end())
    return text[found.end() : end.start() if end else len(text)]


def rows(text: str) -> list[list[str]]:
    """The cells of the first table in `text`, without head and rule."""
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if re.fullmatch(r"\|[-:| ]+\|", line))
    table = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return table


def commands(block: Block) -> list[str]:
    """The commands of a `sh` block: continued lines joined, comments and blank lines left out."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    return [line.strip() for line in joined.split("\n") if line.strip() and not line.startswith("#")]
