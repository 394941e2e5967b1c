"""Identifiers that travel with a request: our request ids, and W3C trace context."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

Entropy = Callable[[int], bytes]

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_KNOWN_FLAGS = 0x03  # sampled, random


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One hop of a trace: 32 and 16 hex digits, and the flags byte (bit 0: sampled)."""

    trace_id: str
    span_id: str
    flags: int = 0

    @property
    def sampled(self) -> bool:
        """Whether the caller records this trace."""
        return bool(self.flags & 1)

    def encode(self) -> bytes:
        """The value of a `traceparent` header."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}".encode("ascii")


def parse_traceparent(raw: bytes | None) -> TraceContext | None:
    """Read a `traceparent` header; `None` if there is none or it is invalid (a new trace is begun then).

    A later version is read as far as this one goes, as the recommendation asks; version `ff` is invalid.
    """
    if raw is None:
        return None
    match = _TRACEPARENT.fullmatch(raw.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    if not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    return TraceContext(trace_id.decode(), span_id.decode(), int(flags, 16) & _KNOWN_FLAGS)


def next_traceparent(
    parent: TraceContext | None, *, sampled: bool = False, entropy: Entropy = os.urandom
) -> TraceContext:
    """Our own span under the caller's; in a new trace, `sampled` or not, if there is none."""
    if parent is not None:
        return TraceContext(parent.trace_id, _hex(entropy, 8), parent.flags)
    return TraceContext(_hex(entropy, 16), _hex(entropy, 8), 0x03 if sampled else 0x02)


def new_request_id(entropy: Entropy = os.urandom) -> str:
    """A new unique request id. Its length is fixed, since some engines match ids by prefix."""
    return "req-" + entropy(16).hex()


def _hex(entropy: Entropy, size: int) -> str:
    digits = entropy(size).hex()
    return digits if digits.strip("0") else "0" * (2 * size - 1) + "1"
