"""What every API's stream tracker tells the relay, and how errors inside a 200 answer are recognised (C3).

Engines report errors inside a stream that has already begun with 200 in many shapes: `{"error": {...}}`,
`{"error": "text", "error_type": ...}`, `{"object": "error", ...}`, `{"type": "error", ...}`, an event named
`error`, a field line `error: {...}`. One reader knows them all, so that no API's tracker forgets one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

_MAX_TEXT = 2000  # characters of an upstream's message that are kept; the rest is of no use to a reader
_MAX_WORD = 200


@dataclass(frozen=True, slots=True)
class InBandError:
    """An error that an upstream reported inside a 200 answer; `status` is the HTTP status that it names."""

    message: str
    type: str | None = None
    code: str | int | None = None
    status: int | None = None


# A generated __init__ is never compiled (docs/deployment.md, "Speed"): what is made for each request has its own.
@dataclass(slots=True, init=False)
class Usage:
    """Token counts as the upstream gave them; `None` where it gave none."""

    input_tokens: int | None
    output_tokens: int | None

    def __init__(self, input_tokens: int | None, output_tokens: int | None) -> None:
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens


@dataclass(slots=True, init=False)
class PlainResult:
    """What a plain (not streamed) 200 answer says beside its content."""

    error: InBandError | None
    usage: Usage | None

    def __init__(self, error: InBandError | None, usage: Usage | None) -> None:
        self.error = error
        self.usage = usage


class StreamTracker(Protocol):
    """Follows one stream of an API, event by event. Feed it complete events only."""

    content: bool  # the preamble is over: the response may start (C1)
    marker: bool  # the API's own success marker was seen
    finished: bool  # every sequence has said why it ended
    error: InBandError | None  # the stream has failed, whatever follows (C3)
    usage: Usage | None
    events: int  # data events with output in them

    @property
    def complete(self) -> bool:
        """A completion signal was seen and no error: an end of the stream is now a success."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What was odd about the stream so far, as words for the log."""
        ...

    def feed(self, block: bytes) -> int:
        """Take complete events; return how many bytes of `block` may go to the caller."""
        ...


def load_lenient(data: bytes) -> Any:
    """Parse JSON as engines write it: also NaN and Infinity, lone surrogates, bytes that are not UTF-8 (J4).

    Raises ValueError. For reading along only: what is passed on are the bytes as they came.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(data.decode("utf-8", "replace"))
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def find_error(value: dict[str, Any]) -> InBandError | None:
    """The error that a JSON object of a stream or of a plain answer reports, `None` if it reports none."""
    inner = value.get("error")
    if inner is not None and inner is not False and (inner or "choices" not in value):
        return read_error(value)
    if value.get("object") == "error" or value.get("type") == "error":
        return read_error(value)
    return None


def read_error(value: Any) -> InBandError:
    """Read what is known to be an error, in any shape, wrapped or flat."""
    outer = value if isinstance(value, dict) else {}
    inner = outer.get("error", value)
    body = inner if isinstance(inner, dict) else {}
    message = _first_text(
        body.get("message"), body.get("detail"), inner, outer.get("message"), outer.get("detail")
    )
    code = _first_word(body.get("code"), outer.get("code"))
    kind = _first_word(body.get("type"), outer.get("error_type"), body.get("error_type"), outer.get("type"))
    return InBandError(
        message=message or "the upstream reported an error without a message",
        type=kind if isinstance(kind, str) else None,
        code=code,
        status=_status(body) or _status(outer),
    )


def read_usage(value: Any) -> Usage | None:
    """Token counts of a `usage` object, in the names of the OpenAI or of the Anthropic API (P12)."""
    if not isinstance(value, dict):
        return None
    tokens_in = _count(value.get("prompt_tokens", value.get("input_tokens")))
    tokens_out = _count(value.get("completion_tokens", value.get("output_tokens")))
    if tokens_in is None and tokens_out is None:
        return None
    return Usage(tokens_in, tokens_out)


def clean_text(text: str, limit: int = _MAX_TEXT) -> str:
    """`text` bounded, and such that it can be written as UTF-8 (lone surrogates become `?`)."""
    return text[:limit].encode("utf-8", "replace").decode("utf-8")


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _status(value: dict[str, Any]) -> int | None:
    for key in ("http_status_code", "status_code", "status", "code", "type"):
        number = value.get(key)
        if isinstance(number, str) and len(number) == 3 and number.isascii() and number.isdigit():
            number = int(number)
        if type(number) is int and 400 <= number <= 599:
            return number
    return None


def _first_text(*values: Any) -> str:
    for value in values:
        if isinstance(value, str) and value.strip():
            return clean_text(value)
    return ""


def _first_word(*values: Any) -> str | int | None:
    for value in values:
        if isinstance(value, str) and value:
            return clean_text(value, _MAX_WORD)
        if type(value) is int:
            return value
    return None
