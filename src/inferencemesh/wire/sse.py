"""Server-sent events as bytes: where events end, and what one event says (contract C6).

The unit of relay is the complete event. `Scanner` cuts a byte stream behind the last blank line that has
arrived and holds the rest; it changes nothing but a leading byte order mark, which it removes (the official
SDKs lose the first event behind one). Lines end in LF, CRLF or a lone CR, also mixed, and a read may end
anywhere.

A blank line shows as two line-end bytes in a row: LF LF, LF CR or CR CR. CR LF is one line end and never a
blank line by itself; an LF behind a blank line's CR belongs to it. So three two-byte searches find every
boundary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

BOM = b"\xef\xbb\xbf"

#: A comment that keeps a silent stream alive. It has no blank line of its own: behind one, clients that
#: remember an `id` (and some old ones) would see an empty event.
KEEPALIVE = b": keep-alive\n"

# A blank line, with the blank lines behind it: an event never begins with a line end.
_BLANK = re.compile(rb"(?:\n\n|[\n\r]\r\n?)[\r\n]*")
_CR, _LF = 0x0D, 0x0A


class EventTooLarge(Exception):  # noqa: N818 - it is what happened, and the caller of `feed` ends the stream
    """One event is longer than `limit` bytes; `complete` are whole events before it, not returned yet."""

    def __init__(self, limit: int, complete: bytes) -> None:
        super().__init__(f"one event of the stream is longer than {limit} bytes (stream.max_event)")
        self.limit = limit
        self.complete = complete


class Scanner:
    """Cuts a stream into blocks of complete events; holds at most `max_event` bytes of an incomplete one.

    `max_event` is the length of one event in bytes without its blank line. All work is linear in the bytes
    fed, however small the pieces are. After `EventTooLarge` a scanner is of no more use.
    """

    __slots__ = ("_begun", "_held", "_max")

    def __init__(self, max_event: int) -> None:
        self._max = max_event
        self._held = bytearray()
        self._begun = False

    @property
    def tail(self) -> bytes:
        """The incomplete event that is held."""
        return bytes(self._held)

    @property
    def held(self) -> int:
        """How many bytes are held."""
        return len(self._held)

    def feed(self, data: bytes) -> bytes:
        """Return all bytes up to the last blank line, held ones included; `b""` if no event is complete.

        An event is complete at its blank line and never waits for the next event's first byte: a CR that
        ends a blank line is returned at once, and an LF that then turns out to follow it is returned when
        it comes. Raises `EventTooLarge`; whether it does depends on the stream alone, not on how it was cut
        into reads.
        """
        # The usual read: nothing held, one or more whole events. Both ends are blank lines whatever stands
        # before.
        if (
            self._begun
            and not self._held
            and len(data) <= self._max
            and data.endswith((b"\n\n", b"\r\n\r\n"))
        ):
            return data
        if not self._begun:
            data = self._after_bom(data)
        if not data:
            return b""
        held = self._held
        if len(held) + len(data) > self._max:
            self._check_sizes(bytes(held) + data)
        end = self._last_end(data)
        if end == 0:
            held += data
            return b""
        if held:
            block = bytes(held) + data[:end]
            held.clear()
        else:
            block = data[:end]
        held += data[end:]
        return block

    def _after_bom(self, data: bytes) -> bytes:
        """Take the first bytes of the stream; return them without the mark, or nothing until it is clear."""
        data = bytes(self._held) + data
        self._held.clear()
        if len(data) < len(BOM) and BOM.startswith(data):
            self._held += data
            return b""
        self._begun = True
        return data.removeprefix(BOM)

    def _last_end(self, data: bytes) -> int:
        """The end of the last blank line in `data`, as it continues what is held; 0 if there is none."""
        at = data.rfind(b"\n\n")
        if b"\r" in data:
            at = max(at, data.rfind(b"\n\r"), data.rfind(b"\r\r"))
        if at >= 0:
            return at + 3 if data[at + 1] == _CR and data.startswith(b"\n", at + 2) else at + 2
        # What remains is a blank line between what is held and the first byte, or, with nothing held, at
        # the start of a line: there a line end is a blank line, or the LF that completes the CRLF of the
        # last one.
        first = data[0]
        if first not in (_CR, _LF):
            return 0
        if self._held:
            last = self._held[-1]
            if last not in (_CR, _LF) or (last == _CR and first == _LF):
                return 0
        return 2 if first == _CR and data.startswith(b"\n", 1) else 1

    def _check_sizes(self, whole: bytes) -> None:
        """Raise if an event in `whole`, or its incomplete tail, is too long. Only called when one may be."""
        start = len(whole) - len(whole.lstrip(b"\r\n"))
        for blank in _BLANK.finditer(whole, start):
            if blank.start() + 1 - start > self._max:
                raise EventTooLarge(self._max, whole[:start])
            start = blank.end()
        if len(whole) - start > self._max:
            raise EventTooLarge(self._max, whole[:start])


@dataclass(frozen=True, slots=True)
class Event:
    """What one event says: `data` are its data lines joined by LF, `fields` all lines but comments."""

    name: bytes
    data: bytes
    has_data: bool
    fields: tuple[tuple[bytes, bytes], ...]

    def field(self, name: bytes) -> bytes | None:
        """The last value of a field, `None` if the event has none of that name."""
        for key, value in reversed(self.fields):
            if key == name:
                return value
        return None


def split_events(block: bytes) -> Iterator[bytes]:
    """The events of a block as they came; joined they are the block. An incomplete rest comes last.

    Line ends before the first event (of a CRLF that was cut in two) come first and apart: they belong to what
    was passed before, whatever becomes of the event behind them.
    """
    start = len(block) - len(block.lstrip(b"\r\n")) if block.startswith((b"\r", b"\n")) else 0
    if start:
        yield block[:start]
    for blank in _BLANK.finditer(block, start):
        yield block[start : blank.end()]
        start = blank.end()
    if start < len(block):
        yield block[start:]


def parse_event(raw: bytes) -> Event:
    """Read one event as the WHATWG specification has it: one space behind the colon goes, comments go."""
    name = b""
    data: list[bytes] = []
    fields: list[tuple[bytes, bytes]] = []
    for line in raw.splitlines():
        key, _, value = line.partition(b":")
        if not key:
            continue  # a comment, or a blank line
        if value.startswith(b" "):
            value = value[1:]
        fields.append((key, value))
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value
    return Event(name, b"\n".join(data), bool(data), tuple(fields))
