"""Whether an answer is what was asked for: parsed strictly, unlike the load generator's fast path."""

from __future__ import annotations

import json
from typing import Any

import httptools

from bench import messages


class _Response:
    """Callbacks of the parser for one response."""

    def __init__(self) -> None:
        self.parser: Any = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.complete = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


def _parse(raw: bytes) -> tuple[str | None, bytes]:
    response = _Response()
    try:
        response.parser.feed_data(raw)
    except httptools.HttpParserError as error:
        return f"not HTTP: {error}", b""
    status = response.parser.get_status_code()
    if status != 200:
        return f"status {status}: {bytes(response.body[:200])!r}", b""
    if not response.complete:
        return f"incomplete after {len(response.body)} body bytes", b""
    return None, bytes(response.body)


def plain_fault(raw: bytes) -> str | None:
    """What is wrong with the bytes of a plain answer, head included; None when nothing is."""
    fault, body = _parse(raw)
    if fault is None and body != messages.plain_body():
        return f"another body: {body[:200]!r}"
    return fault


def stream_fault(raw: bytes, tokens: int) -> str | None:
    """What is wrong with the bytes of a streamed answer of `tokens` content events; None when nothing is.

    The body must be, byte for byte, the events that the fake model server sends.
    """
    fault, body = _parse(raw)
    if fault is not None:
        return fault
    if not body.endswith(messages.DONE_EVENT):
        return f"no [DONE]; ends in {body[-120:]!r}"
    events = [event for event in body.split(b"\n\n") if event and not event.startswith(b":")]
    expected = b"".join(messages.stream_events(tokens)).split(b"\n\n")[:-1]
    if events == expected:
        return None
    for number, (got, wanted) in enumerate(zip(events, expected, strict=False)):
        if got != wanted:
            return f"event {number} is {got!r}, not {wanted!r}"
    return f"{len(events)} events, not {len(expected)} for {json.dumps(tokens)} tokens"
