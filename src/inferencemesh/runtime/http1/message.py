"""What passes between the server and the application on it: requests, answers, plans, and the `App` itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.connection import ServerConnection
    from inferencemesh.runtime.http1.limits import ByteBudget
    from inferencemesh.runtime.http1.responder import Responder

Headers = Sequence[tuple[bytes, bytes]]


class IncomingRequest:
    """One request. Made when its head is complete; `body` is empty until `App.on_request`.

    `headers` keeps the order, names lower-cased, values stripped. `path` is percent-decoded and without the query;
    of an absolute-form target it is the path part. `head_at` is the loop's time at the end of the head.
    The memory of the body is reserved in the server's `ByteBudget` until `release_body`.
    """

    __slots__ = (
        "_budget",
        "_first",
        "_reserved",
        "body",
        "chunked",
        "conn",
        "content_length",
        "context",
        "expects_continue",
        "head_at",
        "headers",
        "http10",
        "keep_alive",
        "method",
        "path",
        "peer",
        "query",
        "target",
    )

    conn: ServerConnection
    _budget: ByteBudget

    def __init__(
        self, method: str, target: bytes, path: str, query: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.method = method
        self.target = target
        self.path = path
        self.query = query
        self.headers = headers
        self.body = b""
        self.head_at = 0.0
        self.peer = ""
        self.http10 = False
        self.keep_alive = True
        self.content_length: int | None = None
        self.chunked = False
        self.expects_continue = False
        self.context: object = None  # the app's own, from `on_head` to `on_request`
        self._reserved = 0
        self._first: dict[bytes, bytes] | None = None  # values by name, made at the first question

    def header(self, name: bytes) -> bytes | None:
        """The first value of the field `name` (given in lower case)."""
        first = self._first
        if first is None:
            first = self._first = dict(reversed(self.headers))
        return first.get(name)

    @property
    def reserved_bytes(self) -> int:
        """What this request holds of the body budget."""
        return self._reserved

    def release_body(self) -> None:
        """Drop the body and give its memory back to the budget. Idempotent (contract A11, B3)."""
        self.body = b""
        self._first = None
        n = self._reserved
        if n:
            self._reserved = 0
            self._budget.release(n)

    def __repr__(self) -> str:
        return f"<IncomingRequest {self.method} {self.path} from {self.peer}>"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response. Framing, `date`, `server` and `connection` fields are the server's own."""

    status: int
    headers: Headers
    body: bytes = b""
    close: bool = False  # end the connection after it


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """Read the body, up to `max_bytes`; more is 413. `timeout_s` may shorten the server's body timeout."""

    max_bytes: int
    timeout_s: float | None = None


class App(Protocol):
    """The application on the server. Every method is called synchronously from the event loop."""

    def on_head(self, request: IncomingRequest) -> Answer | BodyPlan:
        """Decide on the head alone (contract A10). An `Answer` goes out at once, the body unread."""
        ...

    def on_request(self, request: IncomingRequest, responder: Responder) -> None:
        """Take over the request, read whole. From here on the app owns the response and `release_body`."""
        ...

    def on_protocol_error(self, code: str, message: str, request: IncomingRequest | None) -> Answer:
        """Render an error found by the server itself, in the API's shape.

        Codes: invalid_request, request_timeout, body_too_large, headers_too_large, queue_full (connections),
        rate_limit_exceeded (connections of one address), queue_bytes_full (no body memory in time), internal
        (the app raised). `request` is None where the head could not be trusted or was not complete.
        """
        ...
