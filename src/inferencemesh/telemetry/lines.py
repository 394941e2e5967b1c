"""What the line of a request says, field by field: no prompt, answer or key can get into it (contract F3).

Rendered in the log's own thread, which takes its time from the requests: one is a few microseconds.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from inferencemesh.core.events import RequestEnded, RequestRefused
from inferencemesh.core.outcome import OK, Kind, Outcome

Fields = MutableMapping[str, Any]

MAX_MODEL = 128  # characters of a model name that a caller made up
_NEWLINE: Final = orjson.OPT_APPEND_NEWLINE
_MILLISECONDS: Final = tuple(f".{number:03d}Z" for number in range(1000))  # looked up in a tenth of the time


def milliseconds(value_s: float | None) -> float | None:
    """Milliseconds to three places."""
    if value_s is None:
        return None
    # Of an integer, and without round(): a tenth of the time.
    return int(value_s * 1e6 + 0.5) / 1e3 if value_s >= 0 else -int(0.5 - value_s * 1e6) / 1e3


def level_of(event: RequestEnded | RequestRefused) -> str:
    """A failure of ours or of a backend is a warning; refusals and callers' own departures are not."""
    if not isinstance(event, RequestEnded) or event.cause == OK:
        return "info"
    return "warning" if Outcome(event.phase, event.cause).kind is Kind.FAILED else "info"


def request_fields(event: RequestEnded | RequestRefused) -> Fields:
    """The fields of a request's line: times in milliseconds, sizes in bytes, `at` in Unix seconds."""
    if isinstance(event, RequestRefused):
        return {
            "at": event.at,
            "level": "info",
            "event": "refused",
            "id": event.id,
            "tenant": event.tenant,
            "model": None if event.model is None else event.model[:MAX_MODEL],
            "code": event.code,
            "status": event.status,
            "message": event.message,
            "method": event.method,
            "path": event.path,
            "peer": event.peer,
            "duration_ms": milliseconds(event.duration_s),
        }
    return {
        "at": event.at,
        "level": level_of(event),
        "event": "request",
        "id": event.id,
        "tenant": event.tenant,
        "model": event.model,
        "backend": event.backend,
        "attempts": event.attempts,
        "stream": event.stream,
        "status": event.status,
        "phase": str(event.phase),
        "cause": event.cause,
        "upstream_phase": str(event.upstream_phase),
        "stage": event.stage,
        "wait_ms": milliseconds(event.wait_s),
        "first_content_ms": milliseconds(event.first_content_s),
        "backend_first_content_ms": milliseconds(event.backend_first_content_s),
        "duration_ms": milliseconds(event.duration_s),
        "bytes_in": event.bytes_in,
        "bytes_out": event.bytes_out,
        "events": event.events,
        "tokens_in": event.tokens_in,
        "tokens_out": event.tokens_out,
        "notes": list(event.notes),
        "detail": event.detail,
        "peer": event.peer,
    }


class Stamp:
    """Makes Unix seconds readable: UTC with milliseconds. Most lines share their second with the line before."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def of(self, at: float) -> str:
        """The text of an instant."""
        whole = int(at * 1000)
        second = whole // 1000
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return self._text + _MILLISECONDS[whole - second * 1000]


def json_line(event: RequestEnded | RequestRefused, stamp: Stamp) -> bytes:
    """The line of a request as JSON, line end included."""
    fields = request_fields(event)
    fields["at"] = stamp.of(event.at)
    return orjson.dumps(fields, option=_NEWLINE)
