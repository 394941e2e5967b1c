"""A backend as the shell knows it: address, credentials, connections, adapter, drain policy."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from inferencemesh.runtime.engines.base import Engine
from inferencemesh.runtime.http1.client import ConnectionPool


@dataclass(slots=True)
class DrainSettings:
    """How a slot of this backend is believed to be free again after an end made by us (B5); seconds."""

    policy: str  # trust | grace | confirm | worst_case
    grace_s: float
    cleanup_s: float
    overdue_s: float


@dataclass(slots=True, eq=False)
class Upstream:
    """One configured backend. `attempts` counts what was sent to it."""

    name: str
    url: str
    engine: Engine
    pool: ConnectionPool
    drain: DrainSettings
    api_key: str | None = None
    up: bool = True
    failures: int = 0  # consecutive failed probes
    attempts: int = 0
    degraded: str | None = None
    _prefix: bytes = field(init=False)
    _own: bytes = field(init=False)  # from the end of the request line to the value of x-request-id
    _strip_v1: bool = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/")
        # `http://host/v1` and `http://host` both mean the same server: SDKs' base URLs end in /v1.
        self._strip_v1 = path.endswith("/v1")
        self._prefix = path.encode()
        auth = f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        self._own = (
            f" HTTP/1.1\r\nhost: {parts.netloc}\r\naccept-encoding: identity\r\n{auth}x-request-id: "
        ).encode()

    def target(self, path: str) -> bytes:
        """The request target for an API path."""
        raw = path.encode()
        if self._strip_v1 and raw.startswith(b"/v1/"):
            raw = raw[3:]
        return self._prefix + raw

    def render(
        self,
        method: bytes,
        path: str,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        *,
        attempt_id: str,
        timeout_s: float | None,
        traceparent: bytes | None = None,
    ) -> list[bytes]:
        """The request on the wire: re-framed by us, with our credentials and ids (G3, A7)."""
        head = [method, b" ", self.target(path), self._own, attempt_id.encode(), b"\r\n"]
        if timeout_s is not None:
            head.append(b"x-mesh-timeout: %.3f\r\n" % max(0.001, timeout_s))
        if traceparent is not None:
            head.append(b"traceparent: " + traceparent + b"\r\n")
        for name, value in headers:
            head.append(b"%b: %b\r\n" % (name, value))
        if method != b"GET":
            head.append(b"content-length: %d\r\n" % len(body))
        head.append(b"\r\n")
        if len(body) <= _JOIN_BYTES:
            head.append(body)
            return [b"".join(head)]
        return [b"".join(head), body]


_JOIN_BYTES = 64 * 1024  # below it one copy is cheaper than a second write


def attempt_id(rng: random.Random) -> str:
    """An id of our own for one attempt: two attempts at one engine never share one."""
    return "mesh-" + random_hex(rng)


def random_hex(rng: random.Random) -> str:
    """24 digits. `randbytes` does the same in interpreted Python."""
    return rng.getrandbits(96).to_bytes(12, "big").hex()
