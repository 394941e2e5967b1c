"""The door of the admin port: DNS rebinding, the token, and the headers that every answer carries.

Pure ASGI, in front of every route. A page on the web must not reach a gateway on loopback through the
visitor's browser: a name that a stranger's DNS points to 127.0.0.1 is refused by its Host header. The page
itself and its files hold nothing secret and are served without the token; numbers and names are not.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)

_OPEN = frozenset({"/", "/health", "/favicon.ico"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def is_loopback(host: str) -> bool:
    """Whether an address or name to bind to can only be reached from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def error_body(status: int, code: str, message: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """An error as this port answers it: `{"error": {"code", "message"}}`."""
    body = orjson.dumps({"error": {"code": code, "message": message}})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return status, headers, body


class Guard:
    """Wraps the app. `token` None means that none is asked for; `loopback` turns the Host check on.

    Raises ValueError for an empty token: an unset variable must not open the port.
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None, loopback: bool, open_metrics: bool = False
    ) -> None:
        if token is not None and not token.strip():
            raise ValueError("the admin token is empty; leave it out, or set one")
        self._app = app
        self._digest = None if token is None else _digest(token.strip().encode())
        self._loopback = loopback
        self._open = _OPEN | {"/metrics"} if open_metrics else _OPEN

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
            return
        status, headers, body = refusal
        if status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="inferencemesh admin"'))
        out = _with_headers(send)
        await out({"type": "http.response.start", "status": status, "headers": headers})
        await out({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _refusal(self, scope: Scope) -> tuple[int, list[tuple[bytes, bytes]], bytes] | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) > 1 or (self._loopback and not (hosts and _is_local(hosts[0]))):
            return error_body(
                403, "forbidden_host", "this port answers only to localhost or a loopback address"
            )
        if scope["method"] not in _SAFE_METHODS and not _same_origin(headers, hosts):
            return error_body(
                403, "forbidden_origin", "a page of another origin may not change anything here"
            )
        if self._digest is not None and not self._is_open(scope["path"]) and not self._authorised(headers):
            return error_body(401, "invalid_token", "send the admin token: Authorization: Bearer TOKEN")
        return None

    def _is_open(self, path: str) -> bool:
        return path in self._open or path.startswith("/static/")

    def _authorised(self, headers: list[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1 or self._digest is None:
            return False
        scheme, _, token = given[0].partition(b" ")
        # Digests are compared, so that neither the time taken nor its length says anything of the token.
        return scheme.lower() == b"bearer" and hmac.compare_digest(_digest(token.strip()), self._digest)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _is_local(host: bytes) -> bool:
    name = host.decode("latin-1").strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    return is_loopback(name)


def _same_origin(headers: list[tuple[bytes, bytes]], hosts: list[bytes]) -> bool:
    """A request that changes something comes from our own page, or from a tool that sends no Origin."""
    for name, value in headers:
        if name == b"origin" and value.partition(b"://")[2] not in hosts:
            return False
        if name == b"sec-fetch-site" and value not in (b"same-origin", b"none"):
            return False
    return True


def _with_headers(send: Send) -> Callable[[MutableMapping[str, Any]], Awaitable[None]]:
    async def out(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            extra = [pair for pair in SECURITY_HEADERS if pair[0] not in present]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return out
