"""The formats by the book, written for clearness alone: a second opinion on what the product's own readers say."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):(.*)", re.DOTALL)


@dataclass
class Message:
    """A request's line and body, or a response's status and body."""

    line: bytes
    body: bytes
    chunked: bool = False

    @property
    def status(self) -> int:
        """Of a response."""
        return int(self.line.split(b" ")[1])


def sse_events(data: bytes) -> list[tuple[bytes, bytes]]:
    """Name and data of each event that has data (WHATWG HTML, 9.2.6); an incomplete one at the end is dropped."""
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events: list[tuple[bytes, bytes]] = []
    name = b""
    values: list[bytes] = []
    for line in lines[:-1]:
        if not line:
            if values:
                events.append((name, b"\n".join(values)))
            name, values = b"", []
            continue
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"event":
            name = value
        elif key == b"data":
            values.append(value)
    return events


def parse_requests(data: bytes) -> list[Message]:
    """The complete requests at the start of a connection, up to the first that is not (RFC 9112)."""
    found: list[Message] = []
    while True:
        data = data.removeprefix(b"\r\n")
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            return found
        fields = _fields(head)
        lengths = [value for name, value in fields if name == b"content-length"]
        codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
        if len(lengths) + len(codings) > 1:
            return found  # two ways to read it
        line = head.split(b"\r\n")[0]
        if codings:
            body, left = _dechunk(rest)
            if body is None:
                return found
            found.append(Message(line, body, chunked=True))
            data = left
            continue
        length = int(lengths[0]) if lengths and lengths[0].isdigit() else 0
        if len(rest) < length:
            return found
        found.append(Message(line, rest[:length]))
        data = rest[length:]


def parse_response(data: bytes) -> Message | None:
    """The first final response of a connection that then ended; None if it is not complete."""
    while True:
        head, end, rest = data.lstrip(b"\r\n").partition(b"\r\n\r\n")
        if not end:
            return None
        message = Message(head.split(b"\r\n")[0], b"")
        if message.status >= 200:
            break
        data = rest
    fields = _fields(head)
    lengths = [value for name, value in fields if name == b"content-length"]
    if message.status in (204, 304):
        return message
    if any(name == b"transfer-encoding" for name, _ in fields):
        body, _ = _dechunk(rest)
        return None if body is None else Message(message.line, body, chunked=True)
    if lengths:
        length = int(lengths[0])
        return Message(message.line, rest[:length]) if len(rest) >= length else None
    return Message(message.line, rest)


def _fields(head: bytes) -> list[tuple[bytes, bytes]]:
    fields = []
    for line in head.split(b"\r\n")[1:]:
        matched = _FIELD.fullmatch(line)
        if matched is not None:
            fields.append((matched[1].lower(), matched[2].strip(b" \t")))
    return fields


def _dechunk(data: bytes) -> tuple[bytes | None, bytes]:
    """The body and what follows it; None if it is not whole."""
    body = b""
    while True:
        line, end, data = data.partition(b"\r\n")
        size = line.split(b";")[0].strip(b" \t")
        if not end or not re.fullmatch(rb"[0-9A-Fa-f]+", size):
            return None, b""
        n = int(size, 16)
        if not n:
            break
        if data[n : n + 2] != b"\r\n":
            return None, b""
        body, data = body + data[:n], data[n + 2 :]
    while True:  # trailers
        line, end, data = data.partition(b"\r\n")
        if not end:
            return None, b""
        if not line:
            return body, data
