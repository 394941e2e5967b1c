"""Header fields: what is forwarded in either direction, and what callers may say in them (contract G3).

Names are lower-case bytes, values bytes, order kept. What we forward is framed by us: nothing about the
connection or the length of a body is ever copied. A caller's credentials stop here, and so does what
engines would act upon without our knowledge (request ids, routing, resumable streams).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from inferencemesh.core.errors import MeshError
from inferencemesh.wire.trace import parse_traceparent as parse_traceparent

Headers = list[tuple[bytes, bytes]]

#: RFC 9110 section 7.6.1, and what else belongs to one connection only.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"proxy-connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
    )
)

VIA = b"1.1 inferencemesh"

_CREDENTIALS = frozenset(
    (
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"x-auth-token",
        b"cookie",
        b"cookie2",
        # Whose account of a hosted API is meant goes with the credentials, and those are ours.
        b"openai-organization",
        b"openai-project",
    )
)

_REQUEST_DROPPED = (
    HOP_BY_HOP
    | _CREDENTIALS
    | frozenset(
        (
            b"content-length",
            b"host",
            b"expect",
            b"accept-encoding",  # we ask for identity: events must leave one by one
            b"max-forwards",
            # Engines act on these; they are ours to set.
            b"x-request-id",
            b"request-id",
            b"x-conversation-id",  # llama.cpp: the stream would outlive its socket
            b"x-session-id",
            b"x-data-parallel-rank",
            b"x-routed-dp-rank",
            b"traceparent",
            b"tracestate",
            # The browser's word for the gateway, which answers for CORS itself.
            b"origin",
            b"referer",
            b"forwarded",
            b"x-real-ip",
        )
    )
)
_REQUEST_DROPPED_PREFIXES = (b"x-mesh-", b"x-forwarded-", b"x-override-", b"x-smg-", b"x-llm-d-", b"sec-")

_RESPONSE_DROPPED = (
    HOP_BY_HOP
    | _CREDENTIALS
    | frozenset(
        (
            b"content-length",
            b"set-cookie",
            b"set-cookie2",
            b"www-authenticate",
            b"authentication-info",
            b"server",
            b"date",
            b"x-powered-by",
            b"alt-svc",
            b"strict-transport-security",
            b"x-request-id",
            b"request-id",
            # The backend's limits are those of our account there, shared by all tenants.
            b"retry-after",
            b"retry-after-ms",
            b"x-should-retry",
            b"ratelimit",
            b"ratelimit-policy",
            b"anthropic-organization-id",
        )
    )
)
_RESPONSE_DROPPED_PREFIXES = (
    b"x-mesh-",
    b"access-control-",
    b"x-ratelimit-",
    b"ratelimit-",
    b"anthropic-ratelimit-",
)


class _Dropped:
    """Which names one direction drops. What was decided on a name is remembered, of as many as are ever usual."""

    __slots__ = ("known", "names", "prefixes")

    def __init__(self, names: frozenset[bytes], prefixes: tuple[bytes, ...]) -> None:
        self.names = names
        self.prefixes = prefixes
        self.known: dict[bytes, bool] = {}

    def drops(self, name: bytes) -> bool:
        """Decide on a name in lower case, and remember."""
        drop = name in self.names or name.startswith(self.prefixes)
        if len(self.known) < _REMEMBERED and len(name) <= _REMEMBERED_BYTES:
            self.known[name] = drop
        return drop


# Names are the callers': what is remembered of them is bounded.
_REMEMBERED = 512
_REMEMBERED_BYTES = 64
_REQUEST = _Dropped(_REQUEST_DROPPED, _REQUEST_DROPPED_PREFIXES)
_RESPONSE = _Dropped(_RESPONSE_DROPPED, _RESPONSE_DROPPED_PREFIXES)
_AUTHORIZATION: Final = len("authorization")
_API_KEY: Final = len("x-api-key")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_SECONDS = re.compile(rb"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")
_BREAKS = re.compile(rb"[\r\n\0]")


def forward_request_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The caller's fields that a backend may see, and `via`.

    The sender adds what is its own: `host`, `content-length`, `accept-encoding: identity`, the backend's
    credentials, `x-request-id`, `x-mesh-timeout`, `traceparent`.
    """
    kept = _forward(headers, _REQUEST, ())
    kept.append((b"via", VIA))
    return kept


def forward_response_headers(headers: Iterable[tuple[bytes, bytes]], keep: Collection[bytes] = ()) -> Headers:
    """The backend's fields that the caller may see.

    `keep` names (lower-case) fields to let through although they are dropped by default, such as
    `retry-after`; it never lets through what belongs to one connection or frames the body.
    """
    return _forward(headers, _RESPONSE, keep)


def _forward(headers: Iterable[tuple[bytes, bytes]], which: _Dropped, keep: Collection[bytes]) -> Headers:
    kept: Headers = []
    named: set[bytes] = set()
    known = which.known
    for raw, value in headers:
        drop = known.get(raw)
        if drop is None:
            name = raw.lower()
            drop = which.drops(name)
        else:
            name = raw
        if not drop:
            kept.append((name, value))
        elif name == b"connection":
            named.update(word.strip().lower() for word in value.split(b","))
        elif name in keep and name not in HOP_BY_HOP and name != b"content-length":
            kept.append((name, value))
    if named:
        kept = [field for field in kept if field[0] not in named]
    # Parsers refuse these bytes; a value that holds one all the same must not become two fields.
    values = b"".join([value for _, value in kept])
    if len(values.translate(None, b"\r\n\0")) != len(values):
        kept = [field for field in kept if _BREAKS.search(field[1]) is None]
    return kept


def credentials(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The different keys that a request carries in `Authorization: Bearer` and `x-api-key`, in their order.

    More than one means that the caller contradicts itself (401). Other schemes and empty values are no key.
    """
    keys: list[bytes] = []
    for raw, value in headers:
        if len(raw) != _AUTHORIZATION and len(raw) != _API_KEY:
            continue
        name = raw.lower()
        if name == b"authorization":
            scheme, _, key = value.strip().partition(b" ")
            key = key.strip() if scheme.lower() == b"bearer" else b""
        elif name == b"x-api-key":
            key = value.strip()
        else:
            continue
        if key and key not in keys:
            keys.append(key)
    return keys


def valid_request_id(raw: bytes | None) -> str | None:
    """The caller's request id if it may be used: 1 to 128 of `[A-Za-z0-9._-]`."""
    if raw is None or _REQUEST_ID.fullmatch(raw) is None:
        return None
    return raw.decode("ascii")


def parse_mesh_timeout(raw: bytes) -> float:
    """Seconds of `x-mesh-timeout`, a positive decimal number (A7). Raises MeshError `invalid_request`."""
    value = raw.strip()
    seconds = float(value) if _SECONDS.fullmatch(value) is not None else 0.0
    if seconds <= 0:
        raise MeshError(
            "invalid_request",
            "The header x-mesh-timeout must be a number of seconds greater than 0, such as 2.5.",
            param="x-mesh-timeout",
        )
    return seconds


def format_mesh_timeout(left_s: float) -> bytes:
    """What is left of the deadline, in seconds, for the next gateway; never 0, which it would refuse."""
    return b"%.3f" % max(left_s, 0.001)
