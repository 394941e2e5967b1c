"""The kinds of text in the configuration: names, secrets, hashes, dates, addresses, URLs.

Errors never repeat what was written where a secret is expected, or may have been written by mistake.
"""

# ruff: noqa: D102 - the methods are described in `Kind`

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import SplitResult, urlsplit, urlunsplit

from inferencemesh.config import values
from inferencemesh.config.kinds import Json, Kind

_FROM_FILE: Json = {
    "type": "object",
    "properties": {"file": {"type": "string"}},
    "required": ["file"],
    "additionalProperties": False,
    "description": "the content of this file",
}


@dataclass(frozen=True, kw_only=True)
class Text(Kind):
    """Text without line breaks, if given matching `pattern` whole; `rule` says that pattern in words."""

    pattern: str | None = None
    rule: str = ""

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("must be text (put it in quotes)")
        if not value:
            raise ValueError("must not be empty")
        if not value.isprintable():
            raise ValueError("must not hold line breaks or control characters")
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            raise ValueError(self.rule)
        return value

    def describe(self) -> Json:
        return {"type": "string", **({"pattern": f"^(?:{self.pattern})$|\\$\\{{"} if self.pattern else {})}


class SecretText(str):
    """A secret. It is text like any other, but its `repr` does not show it, so that no dump of a model does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'********'"


@dataclass(frozen=True, kw_only=True)
class Secret(Kind):
    """Text that is never printed. Visible ASCII only: it goes into a header field."""

    def read(self, value: object) -> SecretText:
        if not isinstance(value, str):
            raise ValueError("must be text (put it in quotes), `${NAME}` or `{file: PATH}`")
        if not value:
            raise ValueError("must not be empty; write null for none")
        if re.fullmatch(r"[\x21-\x7e]+", value) is None:
            raise ValueError("must be visible ASCII characters without blanks")
        return SecretText(value)

    def describe(self) -> Json:
        return {"anyOf": [{"type": "string"}, _FROM_FILE]}

    @property
    def word(self) -> str:
        return "secret"

    def show(self, value: str) -> str:
        return "********"


@dataclass(frozen=True, kw_only=True)
class Digest(Kind):
    """A lower-case hex SHA-256. What was written instead is not repeated: it may be the key itself."""

    def read(self, value: object) -> str:
        if not isinstance(value, str) or re.fullmatch(r"[0-9a-f]{64}", value) is None:
            raise ValueError(
                "must be 64 lower-case hex digits in quotes, the SHA-256 of the key: "
                "`inferencemesh config hash-key` makes it"
            )
        return value

    def describe(self) -> Json:
        return {"anyOf": [{"type": "string", "pattern": r"^[0-9a-f]{64}$|\$\{"}, _FROM_FILE]}

    @property
    def word(self) -> str:
        return "SHA-256"


@dataclass(frozen=True, kw_only=True)
class Expiry(Kind):
    """A date or timestamp; an aware datetime in UTC in the model."""

    def read(self, value: object) -> datetime:
        return values.read_expiry(value)

    def describe(self) -> Json:
        return {"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}|\$\{"}

    @property
    def word(self) -> str:
        return "date"

    def show(self, value: datetime) -> str:
        return values.show_expiry(value)


@dataclass(frozen=True, kw_only=True)
class Host(Kind):
    """An address or name to listen on."""

    def read(self, value: object) -> str:
        hint = "must be an address or a name such as 127.0.0.1, 0.0.0.0, :: or localhost"
        if not isinstance(value, str):
            raise ValueError(hint)
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            pass
        if re.fullmatch(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", value) is None:
            raise ValueError(hint)
        return value

    def describe(self) -> Json:
        return {"type": "string"}

    @property
    def word(self) -> str:
        return "address"


@dataclass(frozen=True, kw_only=True)
class Network(Kind):
    """An address or a network of addresses, normalised."""

    def read(self, value: object) -> str:
        try:
            return str(ipaddress.ip_network(value if isinstance(value, str) else "", strict=False))
        except ValueError:
            raise ValueError("must be an address or a network such as 10.0.0.0/8") from None

    def describe(self) -> Json:
        return {"type": "string"}

    @property
    def word(self) -> str:
        return "network"


@dataclass(frozen=True)
class Url(Kind):
    """A URL of one of these schemes, without a trailing slash.

    Only with `credentials` may it hold a user and password; then `show` masks them. `strip` is a path ending that is
    taken off.
    """

    schemes: tuple[str, ...]
    credentials: bool = False
    strip: str = ""

    def read(self, value: object) -> str:
        hint = f"must be a URL such as {self.schemes[0]}://127.0.0.1:8001"
        if not isinstance(value, str):
            raise ValueError(hint)
        if re.fullmatch(r"[\x21-\x7e]+", value) is None:
            raise ValueError(f"{hint}; it holds blanks or characters beyond ASCII")
        try:
            parts = urlsplit(value)
            port = parts.port
        except ValueError:
            raise ValueError(f"{hint}; its host or port is not readable") from None
        if parts.scheme not in self.schemes:
            raise ValueError(f"{hint}; it must begin with {' or '.join(f'{s}://' for s in self.schemes)}")
        if not parts.hostname or "%" in parts.netloc or port == 0:
            raise ValueError(f"{hint}; its host or port is missing")
        if "@" in parts.netloc and not self.credentials:
            raise ValueError("must not hold a user or password; credentials have a key of their own")
        if parts.query or parts.fragment or value.endswith(("?", "#")):
            raise ValueError("must not hold a query (?) or fragment (#)")
        path = parts.path.rstrip("/")
        if self.strip:
            path = path.removesuffix(self.strip).rstrip("/")
        return urlunsplit(SplitResult(parts.scheme, parts.netloc, path, "", ""))

    def describe(self) -> Json:
        return {"type": "string", "pattern": f"^({'|'.join(self.schemes)})://|\\$\\{{"}

    @property
    def word(self) -> str:
        return "URL"

    def show(self, value: str) -> str:
        parts = urlsplit(value)
        if "@" not in parts.netloc:
            return value
        return urlunsplit(parts._replace(netloc=f"********@{parts.netloc.rpartition('@')[2]}"))
