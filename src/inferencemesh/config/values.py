"""Durations, sizes and expiry dates: from text to numbers and back.

Every `read_*` raises ValueError with a message that says what to write instead.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

# No duration of a gateway is longer; beyond it somebody has written milliseconds.
MAX_DURATION_S = 366 * 86400.0

_SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+", re.ASCII)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", re.ASCII)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)", re.ASCII)
_BYTES = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def read_duration(value: object) -> float:
    """A duration in seconds from `10s`, `250ms`, `1m30s`, `2h`, `1d`, or a number of seconds."""
    hint = "must be a duration such as 10s, 250ms or 1m (a plain number counts seconds)"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(hint)
    if isinstance(value, str):
        text = value.strip()
        if _DURATION.fullmatch(text):
            seconds = float(sum(Decimal(n) * _SECONDS[unit] for n, unit in _DURATION_PART.findall(text)))
        elif _NUMBER.fullmatch(text):
            seconds = float(text)
        else:
            raise ValueError(f"{hint}, not {value!r}")
    else:
        seconds = float(value) if abs(value) < 1e18 else math.inf
    if not math.isfinite(seconds) or seconds > MAX_DURATION_S:
        raise ValueError("is longer than 366d; write a duration such as 10s")
    if seconds < 0:
        raise ValueError("must not be negative")
    return seconds


def show_duration(seconds: float) -> str:
    """The shortest exact text that `read_duration` reads as the same number."""
    exact = Decimal(repr(float(seconds)))
    if exact and exact < 1:
        return f"{_plain(exact * 1000)}ms"
    return f"{_plain(exact)}s"


def read_size(value: object) -> int:
    """A number of bytes from `32KiB`, `256MiB`, `1GiB`, `10MB` (decimal), or a number of bytes."""
    hint = "must be a size such as 32KiB or 256MiB (a plain number counts bytes)"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(hint)
    match = _SIZE.fullmatch(value.strip() if isinstance(value, str) else str(value))
    if match is None or match[2].lower() not in _BYTES:
        raise ValueError(f"{hint}, not {value!r}")
    exact = Decimal(match[1]) * _BYTES[match[2].lower()]
    if exact != exact.to_integral_value():
        raise ValueError(f"is not a whole number of bytes: {value!r}")
    if exact >= 1 << 60:
        raise ValueError("is larger than any machine; write a size such as 256MiB")
    return int(exact)


def show_size(size_bytes: int) -> str:
    """The size in the largest binary unit that divides it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _BYTES[unit.lower()]
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def read_expiry(value: object) -> datetime:
    """The instant from which a key is no longer valid, in UTC.

    A date includes its whole day; a timestamp without a zone is UTC.
    """
    hint = "must be a date such as 2027-12-31 (that day included, UTC) or a timestamp such as 2027-12-31T18:00:00Z"
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    if not isinstance(value, str):
        raise ValueError(hint)
    text = value.strip()
    try:
        at = datetime.fromisoformat(text)
        if _DATE.fullmatch(text):
            return datetime.combine(at.date(), time(), UTC) + timedelta(days=1)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{hint}, not {value!r}") from None


def show_expiry(at: datetime) -> str:
    """The instant as a timestamp that `read_expiry` reads back."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(number: Decimal) -> str:
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
