"""`${NAME}`, `${NAME:-default}` and `{file: PATH}` in values, before the schema sees them.

`$$` is a `$`. A value without quotes that becomes empty is null, as an empty value is in YAML; so
`token: ${TOKEN:-}` is “no token” where TOKEN is not set.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path as FilePath

from inferencemesh.config.problems import Path, Problem, path_text
from inferencemesh.config.yamlmap import Document

MAX_SECRET_BYTES = 64 * 1024

_REFERENCE = re.compile(r"\$(?:\$|\{([^{}]*)(\}?))")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.ASCII | re.DOTALL)


def expand(document: Document, environ: Mapping[str, str], base: FilePath) -> None:
    """Replace references in `document.data` by their values.

    Files are looked for beside the configuration (`base`). What cannot be resolved is added to `document.problems`
    and becomes None.
    """
    document.data = _Expansion(document, environ, base).value(document.data, ())


class _Expansion:
    def __init__(self, document: Document, environ: Mapping[str, str], base: FilePath) -> None:
        self._document = document
        self._environ = environ
        self._base = base

    def value(self, value: object, path: Path) -> object:
        if isinstance(value, dict):
            if set(value) == {"file"} and isinstance(value["file"], str):
                return self._file(value["file"], path)
            return {key: self.value(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, (*path, i)) for i, item in enumerate(value)]
        if isinstance(value, str) and "$" in value:
            text = self._text(value, path)
            return text if text or path in self._document.quoted else None
        return value

    def _text(self, text: str, path: Path) -> str | None:
        """The text with its references replaced; None if one cannot be."""
        wrong: list[str] = []

        def replace(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            reference = _NAME.fullmatch(match[1])
            if reference is None or not match[2]:
                wrong.append(
                    "`${` begins a reference: write `${NAME}`, `${NAME:-default}`, or `$$` for a `$`"
                )
                return ""
            name, default = reference[1], reference[2]
            found = self._environ.get(name)
            if found or (found is not None and default is None):
                return found
            if default is None:
                wrong.append(
                    f"the environment variable {name} is not set; set it, or write `${{{name}:-default}}`"
                )
            return default or ""

        result = _REFERENCE.sub(replace, text)
        for message in wrong:
            self._document.problems.append(self._document.problem(path, message))
        return None if wrong else result

    def _file(self, name: str, path: Path) -> str | None:
        expanded = self._text(name, (*path, "file")) if "$" in name else name
        if expanded is None:
            return None
        file = self._base / expanded
        try:
            if not stat.S_ISREG(file.stat().st_mode):
                message = "is not a regular file"
            else:
                with file.open("rb") as stream:
                    raw = stream.read(MAX_SECRET_BYTES + 1)
                if len(raw) <= MAX_SECRET_BYTES:
                    return raw.decode("utf-8").rstrip("\r\n")
                message = f"is larger than {MAX_SECRET_BYTES // 1024}KiB"
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
        except UnicodeDecodeError:
            message = "is not UTF-8 text"
        except ValueError:
            message = "is not a file name"
        at = self._document.position((*path, "file")) or (None, None)
        self._document.problems.append(Problem(f"the file {expanded!r} {message}", path_text(path), *at))
        return None
