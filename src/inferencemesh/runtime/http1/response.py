"""Reading one response after the other with llhttp, bounded, into a sink (contract A11, C3).

llhttp parses. `should_keep_alive()` is asked inside on_message_complete, the only place where it is right: asked
later it says no, and every request would open a connection of its own.
"""

from __future__ import annotations

from typing import Protocol

import httptools

from inferencemesh.runtime.http1.lost import UpstreamLost

HEAD_BYTES = 64 * 1024  # of a response head, interim responses included; also of chunk extensions or trailers
_INTERIM = 16  # 1xx responses before the real one
_DELIMITING = frozenset((b"content-length", b"transfer-encoding"))


class ResponseSink(Protocol):
    """Takes one response; every method is called synchronously from the event loop.

    After `on_end` or `on_lost`, or after its owner has ended the connection, none is called any more. One that
    raises ends the response with `on_lost`, code `internal`.
    """

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Status and fields of the final response; names lower-cased, values stripped."""

    def on_body(self, chunk: bytes) -> None:
        """Body bytes; maybe several times per read."""

    def on_read(self) -> None:
        """The end of one read: what was gathered may now leave in one write."""

    def on_end(self) -> None:
        """The message is complete (no `on_read` follows); the connection is back in the pool, or closed."""

    def on_lost(self, lost: UpstreamLost) -> None:
        """The response ended before it was complete."""


class BadResponseError(Exception):
    """A response that llhttp takes and we do not; raised inside it to stop it."""


class ResponseReader:
    """The parser's callbacks, and what they found of the present response."""

    __slots__ = (
        "_complete",
        "_delimited",
        "_failure",
        "_head_bytes",
        "_head_done",
        "_headers",
        "_interim",
        "_is_http11",
        "_keep",
        "_parser",
        "_silent",
        "_sink",
    )

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._sink: ResponseSink | None = None
        self._failure: BaseException | None = None  # what the sink raised
        self._interim = 0
        self._keep = False
        self._reset()

    def _reset(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._silent = 0  # bytes since the last body byte
        self._head_done = False
        self._is_http11 = False  # as read from its first bytes: the parser makes a text of it
        self._complete = False
        self._delimited = False  # by a length or chunks; else by the end of the connection

    def on_message_begin(self) -> None:
        """Called by llhttp; after our message it is something that nobody asked for."""
        if self._complete:
            self._keep = False
            raise BadResponseError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by llhttp for each field, and for each trailer."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > HEAD_BYTES:
            raise BadResponseError(f"its head or trailers are larger than {HEAD_BYTES} bytes")
        if self._head_done:
            return
        name = name.lower()
        value = value.strip(b" \t")
        if name in _DELIMITING:
            self._delimited = True
            if name == b"transfer-encoding" and value.lower() != b"chunked":
                raise BadResponseError("it has a transfer coding other than chunked")
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Called by llhttp at the end of a head."""
        parser = self._parser
        status = parser.get_status_code()
        if status < 200:
            self._interim += 1
            self._is_http11 = False  # the next head says so by itself
            if status == 101 or status < 100 or self._interim > _INTERIM:
                raise BadResponseError(f"its status is {status}")
            return
        if not self._is_http11 and parser.get_http_version() not in ("1.1", "1.0"):
            raise BadResponseError("it is not HTTP/1.1")
        self._head_done = True
        sink = self._sink
        if sink is not None:
            try:
                sink.on_head(status, self._headers)
            except BaseException as error:
                self._failure = error
                raise

    def on_body(self, chunk: bytes) -> None:
        """Called by llhttp with decoded bytes."""
        if not self._head_done:  # it would be taken for the beginning of the real one's
            raise BadResponseError("an interim response has a body")
        self._silent = 0
        sink = self._sink
        if sink is not None:
            try:
                sink.on_body(chunk)
            except BaseException as error:
                self._failure = error
                raise

    def on_message_complete(self) -> None:
        """Called by llhttp at the end of a message; of an interim one, too."""
        if self._head_done:
            self._complete = True
            self._keep = self._parser.should_keep_alive()
        else:
            self._headers = []
            self._delimited = False
