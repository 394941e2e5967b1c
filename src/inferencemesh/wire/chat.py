"""Streams and plain answers of chat completions and of completions (contract C1, C3).

Most events of a stream are one more token and nothing else. `ChatTracker` parses until the first content;
from then on a block of events that holds none of a few byte strings is passed unparsed. The strings are
wide (`error` anywhere, any `finish_reason` that is not null), so that text which only mentions them costs a
parse and decides nothing. They are searched as bytes: a key written with Unicode escapes, which no engine
does, goes unseen after the first content.
"""

from __future__ import annotations

import re
from typing import Any

from inferencemesh.wire.sse import Event, parse_event, split_events
from inferencemesh.wire.tracker import (
    InBandError,
    PlainResult,
    Usage,
    find_error,
    load_lenient,
    read_error,
    read_usage,
)

_DONE = b"[DONE]"
_LARGE_BYTES = 64 * 1024
_ERROR_BODY = re.compile(rb'\s*\{\s*"(?:error"|object"\s*:\s*"error")')
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_OUTPUT_KEYS = (
    "content",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "refusal",
    "tool_calls",
    "function_call",
    "audio",
    "images",
)


class ChatTracker:
    """Follows one stream of chat completions, or of completions, of which `choices` sequences were asked for.

    - `content`: something to show has come: text, reasoning, a refusal, a tool call, audio. A role alone or
      an empty delta is not content (P14); a finish reason or the marker is the end of the preamble too,
      since an empty answer is an answer.
    - `marker`: `[DONE]` as the whole data of an event (T9). `finished`: a finish reason for every choice
      (U13).
    - `error`: a failure reported in the stream (P15). It is final, also when `[DONE]` follows.
    - `malformed`: complete events whose data is not a JSON object. They pass as bytes and are not content,
      so a stream of nothing else never starts the response.
    """

    __slots__ = (
        "_choices",
        "_cruising",
        "_dropped",
        "_dropping",
        "content",
        "error",
        "events",
        "finish_reasons",
        "finished",
        "malformed",
        "marker",
        "usage",
    )

    def __init__(self, choices: int = 1) -> None:
        self.content = False
        self.marker = False
        self.finished = False
        self.error: InBandError | None = None
        self.usage: Usage | None = None
        self.events = 0
        self.malformed = 0
        self.finish_reasons: dict[int, str] = {}
        self._choices = choices
        self._cruising = False  # content was seen, and neither marker nor error
        self._dropped: set[str] = set()
        self._dropping = False

    @property
    def complete(self) -> bool:
        """The marker or every finish reason was seen, and no error (C3)."""
        return self.error is None and (self.marker or self.finished)

    @property
    def notes(self) -> tuple[str, ...]:
        """So far: marker_missing, finish_missing, malformed_event, repeated_marker, event_after_marker."""
        notes = sorted(self._dropped)
        if self.malformed:
            notes.append("malformed_event")
        if self.error is None and self.marker != self.finished:
            notes.append("marker_missing" if self.finished else "finish_missing")
        return tuple(notes)

    def feed(self, block: bytes) -> int:
        """Take complete events; return how many bytes of `block` may go to the caller.

        That is all of it, but for an error event and what follows it (`error` says which), and for what
        follows the marker (a second marker is dropped, comments pass).
        """
        if self._cruising and self._dull(block):
            return len(block)
        passed = 0
        for raw in split_events(block):
            if not self._take(raw):
                break
            passed += len(raw)
        return passed

    def _dull(self, block: bytes) -> bool:
        """Whether a block carries nothing but output (in the usual spacing); if so, counts its events."""
        # `rfind` is more than twice as fast as `in` here, and this runs for every event of every stream.
        if block.rfind(b"error") >= 0 or block.rfind(_DONE) >= 0:
            return False
        if block.rfind(b'"usage"') >= 0 and not _all_null(block, b'"usage"'):
            return False
        finishes = block.count(b'"finish_reason"')
        if finishes != block.count(b'"finish_reason":null') and not _all_null(block, b'"finish_reason"'):
            return False
        chunks = block.count(b'"choices":[{') or block.count(b'"choices": [{')
        self.events += chunks
        return chunks > 0

    def _take(self, raw: bytes) -> bool:
        """Take one event; whether it may pass."""
        if self.error is not None:
            return False
        if self._cruising and self._dull(raw):
            return True
        event = parse_event(raw)
        if self.marker:
            if event.fields:
                self._dropped.add("repeated_marker" if event.data == _DONE else "event_after_marker")
                self._dropping = True
            elif raw.strip(b"\r\n"):
                self._dropping = False  # a comment; bare line ends share the lot of what they belong to
            return not self._dropping
        error = self._read(event)
        if error is not None:
            self.error = error
            self._cruising = False
            return False
        self._cruising = self.content and not self.marker
        return True

    def _read(self, event: Event) -> InBandError | None:
        """Read one event into the state; return the error that it reports."""
        told = event.field(b"error")  # old llama.cpp: a field of its own instead of data
        if told is not None:
            return read_error(_value_or_text(told))
        if event.name == b"error":
            return read_error(_value_or_text(event.data))
        if not event.has_data:
            return None
        if event.data == _DONE:
            self.marker = self.content = True
            return None
        try:
            value = load_lenient(event.data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self.malformed += 1
            return None
        error = find_error(value)
        if error is None:
            self._read_chunk(value)
        return error

    def _read_chunk(self, chunk: dict[str, Any]) -> None:
        usage = read_usage(chunk.get("usage"))
        if usage is not None:
            self.usage = usage
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return
        self.events += 1
        for choice in choices:
            if isinstance(choice, dict):
                self._read_choice(choice)

    def _read_choice(self, choice: dict[str, Any]) -> None:
        if not self.content and _has_output(choice):
            self.content = True
        reason = choice.get("finish_reason")
        if not reason:
            return
        self.content = True
        index = choice.get("index", 0)
        # An index that was not asked for is no answer to the request, and would let the table grow.
        if type(index) is int and 0 <= index < self._choices:
            self.finish_reasons[index] = reason if isinstance(reason, str) else "other"
            self.finished = len(self.finish_reasons) == self._choices


def plain_result(body: bytes) -> PlainResult:
    """Error and usage of a plain answer with status 200; neither, if it is not a JSON object.

    Of a large body (a list of embeddings is megabytes of numbers) only the last `usage` is parsed.
    """
    if len(body) > _LARGE_BYTES and _ERROR_BODY.match(body) is None:
        found = _USAGE.match(body, max(body.rfind(b'"usage"'), 0))
        return PlainResult(None, read_usage(_value_or_text(found[1])) if found else None)
    if body.rfind(b"error") < 0:
        # The usual answer: of all its text only the small object of its one `usage` is parsed.
        at = body.rfind(b'"usage"')
        if at < 0:
            return PlainResult(None, None)
        if body.rfind(b'"usage"', 0, at) < 0:
            usage = _small_object(body, at + 7)
            if usage:
                return PlainResult(None, read_usage(_value_or_text(usage)))
    value = _value_or_text(body)
    if not isinstance(value, dict):
        return PlainResult(None, None)
    return PlainResult(find_error(value), read_usage(value.get("usage")))


def _small_object(body: bytes, at: int) -> bytes:
    """The object that is the value of the key that ends at `at`, braces within one level; nothing if it is another."""
    start = at + 1 if body[at : at + 2] == b":{" else at + 2 if body[at : at + 3] == b": {" else 0
    if start:
        end = body.find(b"}", start) + 1
        if end and body.find(b"{", start + 1, end) < 0:
            return body[start:end]
    found = _USAGE.match(body, at - 7)
    return found[1] if found is not None else b""


def _all_null(block: bytes, key: bytes) -> bool:
    """Whether every `key` in the block has the value null, in one of the two usual spacings."""
    return block.count(key) in (block.count(key + b":null"), block.count(key + b": null"))


def _has_output(choice: dict[str, Any]) -> bool:
    if choice.get("text"):
        return True
    for part in (choice.get("delta"), choice.get("message")):
        if isinstance(part, dict) and any(part.get(key) for key in _OUTPUT_KEYS):
            return True
    return False


def _value_or_text(data: bytes) -> Any:
    try:
        return load_lenient(data)
    except ValueError:
        return data.decode("utf-8", "replace")
