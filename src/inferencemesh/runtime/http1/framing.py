"""How requests are delimited, and what is refused as ambiguous (contract G1, G3; RFC 9112).

llhttp parses; this module decides. A message is only taken if there is one way to read it: anything that another
HTTP implementation might delimit differently is a `FramingError`, after which the connection is not read further.
"""

from __future__ import annotations

import io
from typing import Final
from urllib.parse import unquote_to_bytes

import httptools
from httptools import HttpParserError, HttpParserUpgrade

from inferencemesh.runtime.http1.message import IncomingRequest

_SPACE: Final = 0x20
_METHODS = {m.encode(): m for m in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")}
_HOST_CHARS = (
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" + b"-._~%!$&'()*+,;=:[]"
)  # RFC 3986 reg-name, IP literal and port
_FRAMING_FIELDS = frozenset((b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"))
_CHUNKED_HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


class FramingError(Exception):
    """A request that is not taken; `code` is a row of the error table."""

    def __init__(self, message: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class _HeadSink:
    """Collects what llhttp finds in one head."""

    __slots__ = ("complete", "headers")

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if value and (value[0] <= _SPACE or value[-1] <= _SPACE):
            value = value.strip(b" \t")
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(head: bytes, max_fields: int = 256) -> IncomingRequest:
    """The request that `head` (exactly one head, blank line included) describes; raises `FramingError`."""
    if head.count(b"\n") != head.count(
        b"\r\n"
    ):  # in a request line llhttp takes one for the end of HTTP/0.9's
        raise FramingError("Lines of the request head must end in CR LF.")
    line = head[: head.find(b"\r\n")].split(b" ")
    if len(line) != 3:
        raise FramingError("The request line must be METHOD TARGET HTTP/1.1, separated by single spaces.")
    method, target, version = line
    if not b"A" <= method[:1] <= b"Z":  # llhttp passes over bare line ends before it, and not all others do
        raise FramingError("The request line must begin with a method in capitals.")
    if version == b"HTTP/1.1":
        http10 = False
    elif version == b"HTTP/1.0":
        http10 = True
    else:
        raise FramingError("Only HTTP/1.1 and HTTP/1.0 are spoken here.")

    sink = _HeadSink()
    try:
        httptools.HttpRequestParser(sink).feed_data(head)
    except HttpParserUpgrade:
        raise FramingError("Upgrade and CONNECT are not supported.") from None
    except HttpParserError as error:
        raise FramingError(f"The request head is malformed: {error}.") from None
    if not sink.complete:
        raise FramingError("The request head is malformed.")
    headers = sink.headers
    if len(headers) > max_fields:
        raise FramingError(f"More than {max_fields} header fields.", "headers_too_large")

    path, query = _split_target(method, target)
    request = IncomingRequest(_METHODS.get(method) or method.decode("ascii"), target, path, query, headers)
    request.http10 = http10
    _apply_framing_fields(request, http10)
    return request


def _apply_framing_fields(request: IncomingRequest, http10: bool) -> None:
    hosts = 0
    length: bytes | None = None
    connection = b""
    for name, value in request.headers:
        if name not in _FRAMING_FIELDS:
            continue
        if name == b"host":
            hosts += 1
            if value.translate(None, _HOST_CHARS):
                raise FramingError("The Host field is malformed.")
        elif name == b"content-length":
            if length is not None:
                raise FramingError("More than one Content-Length.")
            if not value.isdigit() or len(value) > 18:
                raise FramingError("Content-Length must be a number.")
            length = value
        elif name == b"transfer-encoding":
            if request.chunked or value.lower() != b"chunked":
                raise FramingError("The only transfer coding accepted is `chunked`, once.")
            if http10:
                raise FramingError("Transfer-Encoding does not exist in HTTP/1.0.")
            request.chunked = True
        elif name == b"connection":
            connection = connection + b"," + value.lower() if connection else value.lower()
        else:
            request.expects_continue = not http10 and value.lower() == b"100-continue"
    if hosts > 1 or (hosts == 0 and not http10):
        raise FramingError("Exactly one Host field is required.")
    if length is not None:
        if request.chunked:
            raise FramingError("Content-Length together with Transfer-Encoding.")
        request.content_length = int(length)
    if connection:
        tokens = {token.strip() for token in connection.split(b",")}
        request.keep_alive = b"close" not in tokens and (not http10 or b"keep-alive" in tokens)
    else:
        request.keep_alive = not http10


def _split_target(method: bytes, target: bytes) -> tuple[str, bytes]:
    """Decoded path and raw query of an origin-form, absolute-form or `*` target."""
    if target.find(b"#") >= 0:  # `in` would first ask whether it is a number
        raise FramingError("The request target must not have a fragment.")
    raw, _, query = target.partition(b"?")
    if raw[:1] != b"/":
        if raw == b"*" and method == b"OPTIONS" and not query:
            return "*", b""
        scheme, separator, rest = raw.partition(b"://")
        if not separator or scheme.lower() not in (b"http", b"https") or not rest or rest[:1] == b"/":
            raise FramingError("The request target must be a path or an absolute http(s) URL.")
        slash = rest.find(b"/")
        raw = rest[slash:] if slash >= 0 else b"/"
    if raw.find(b"%") < 0:
        try:
            return raw.decode("ascii"), query
        except UnicodeDecodeError:
            raise FramingError("The request target must be ASCII.") from None
    try:
        path = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise FramingError("The path is not UTF-8 after percent-decoding.") from None
    if not path.isprintable():
        raise FramingError("The path has control characters.")
    return path, query


class _ExtraMessageError(Exception):
    """Raised inside llhttp to stop it at the first byte of a further message."""


class ChunkedBody:
    """One chunked body, decoded by llhttp and bounded in what it holds.

    llhttp does not say where in a read the message ended. If something but line ends follows in the same read,
    `extra` is set: those bytes cannot be told apart from the message, so the connection must not be reused.
    """

    __slots__ = ("_overhead", "_parser", "_pieces", "_slack", "complete", "extra", "size")

    def __init__(self, slack: int) -> None:
        self._pieces = io.BytesIO()
        self.size = 0  # bytes of body so far
        self.complete = False
        self.extra = False
        self._slack = slack  # bytes of chunk extensions and trailers without any body byte between
        self._overhead = 0
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_CHUNKED_HEAD)

    def feed(self, data: bytes) -> None:
        """Decode one read; raises `FramingError` when it is not well-formed chunks, or drowns in extensions."""
        before = self.size
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            if not self.complete:
                raise FramingError(f"The chunked body is malformed: {error}.") from None
        except HttpParserUpgrade:  # only a second message can ask for one
            self.extra = True
        if self.size != before:
            self._overhead = 0
        elif not self.complete:
            self._overhead += len(data)
            if self._overhead > self._slack:
                raise FramingError("Too many chunk extensions or trailer fields.", "headers_too_large")

    def take(self) -> bytes:
        """The whole body; the buffer is handed over, not copied."""
        return self._pieces.getvalue()

    def on_message_begin(self) -> None:
        """Called by llhttp; the second time it is another message."""
        if self.complete:
            self.extra = True
            raise _ExtraMessageError

    def on_body(self, piece: bytes) -> None:
        """Called by llhttp with decoded bytes."""
        self.size += len(piece)
        self._pieces.write(piece)

    def on_message_complete(self) -> None:
        """Called by llhttp after the last chunk and its trailers."""
        self.complete = True
