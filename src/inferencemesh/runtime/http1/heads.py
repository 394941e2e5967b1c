"""Response heads: rendered once, checked against injection, framing fields always our own (contract G3)."""

from __future__ import annotations

from http import HTTPStatus

from inferencemesh.runtime.http1.message import Headers
from inferencemesh.runtime.http1.stamp import common_fields as _common_fields

CHUNKED = b"transfer-encoding: chunked\r\n"
CLOSE = b"connection: close\r\n"
KEEP_ALIVE = b"connection: keep-alive\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_OWNED = frozenset(
    (
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"keep-alive",
        b"date",
        b"server",
        b"trailer",
        b"upgrade",
    )
)
# Of those that are not: what nearly every response has.
_USUAL = frozenset(
    (
        b"content-type",
        b"x-request-id",
        b"request-id",
        b"x-mesh-queue-ms",
        b"cache-control",
        b"x-accel-buffering",
    )
)
_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode("ascii") for s in HTTPStatus}


def bodiless(status: int) -> bool:
    """Statuses whose responses have no body whatever their fields say."""
    return status in (204, 304) or status < 200


def response_head(status: int, headers: Headers, framing: bytes) -> bytes:
    """Status line and fields, blank line included; `framing` is the server's own fields, already rendered.

    Fields of `headers` that the server owns are left out. Raises ValueError for CR, LF or NUL in a field: that is
    how a response would be split.
    """
    parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, value in headers:
        if name in _USUAL or name.lower() not in _OWNED:
            parts.append(b"%b: %b\r\n" % (name, value))
    head = b"".join(parts)
    if len(head.translate(None, b"\r\n\0")) != len(head) - 2 * len(parts):
        raise ValueError("A response header field contains CR, LF or NUL.")
    return b"%b%b%b\r\n" % (head, _common_fields(), framing)
