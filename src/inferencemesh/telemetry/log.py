"""The log: one line for each request that ended or was refused (contract F3), and the process's own messages.

Both go through one writer, so that lines never interleave. JSON lines, or for people on a terminal. What a
request's line may hold is listed in `lines`, field by field.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

import orjson
import structlog

from inferencemesh.core.events import BackendChanged, Drained, Event, RequestEnded, RequestRefused
from inferencemesh.telemetry.lines import Fields, Stamp, json_line, level_of, milliseconds, request_fields
from inferencemesh.telemetry.writer import CAPACITY, LineWriter, Sink

Processor = Callable[[Any, str, Fields], Any]
_Entry = RequestEnded | RequestRefused | Fields
_OF_REQUESTS = (RequestEnded, RequestRefused)  # a union would be made anew for each question

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
MAX_TEXT = 2_000  # characters of one value
_CREDENTIALS = {"api_key", "apikey", "authorization", "cookie", "key", "password", "proxy_authorization"}
_CREDENTIALS |= {"secret", "set_cookie", "token", "admin_token", "x_api_key"}
_CONTENTS = {"body", "content", "messages", "prompt"}
_MASKED = frozenset(_CREDENTIALS | _CONTENTS)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def redact(_logger: Any, _method: str, fields: Fields) -> Fields:
    """A last net for the process's own messages: values under the names of secrets or contents are masked."""
    for name in fields:
        if name.lower().replace("-", "_") in _MASKED:
            fields[name] = "[redacted]"
    return fields


def bound(_logger: Any, _method: str, fields: Fields) -> Fields:
    """Bound the text of every value of a message; a request's fields are bounded as they are made."""
    for name, value in fields.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            fields[name] = value[:MAX_TEXT] + "…"
    return fields


def for_people(_logger: Any, _method: str, fields: Fields) -> Fields:
    """Leave out what says nothing, and show control characters instead of sending them to the terminal."""
    shown: Fields = {}
    for name, value in fields.items():
        if value is None or value == []:
            continue
        text = ",".join(value) if name == "notes" and isinstance(value, list) else value
        if isinstance(text, str):
            text = _UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)
        shown[name] = text
    return shown


def _dumps(fields: Any, **_: Any) -> bytes:
    return orjson.dumps(fields, default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)


def _renderers(format_: str, *, colours: bool) -> list[Processor]:
    if format_ == "json":
        return [_stamped(), structlog.processors.JSONRenderer(serializer=_dumps)]
    console = structlog.dev.ConsoleRenderer(
        colors=colours,
        sort_keys=False,
        pad_event_to=10,
        timestamp_key="at",
        exception_formatter=structlog.dev.plain_traceback,
    )

    def human(logger: Any, method: str, fields: Fields) -> Any:
        line = short_line(fields)
        return line if line is not None else console(logger, method, for_people(logger, method, fields))

    return [_stamped(), human]


def _stamped() -> Processor:
    stamp = Stamp()

    def readable(_logger: Any, _method: str, fields: Fields) -> Fields:
        fields["at"] = stamp.of(fields["at"])
        return fields

    return readable


def short_line(fields: Fields) -> str | None:
    """A request in one short line for people; None for other messages."""
    if fields.get("event") not in ("request", "refused"):
        return None
    clock = str(fields["at"])[11:19]
    who = f"{_printable(fields['tenant']) or '-':<12} {_printable(fields['model']) or '-'}"
    status = fields["status"] if fields["status"] is not None else "-"
    if fields["event"] == "refused":
        return f"{clock}  {who}  {status} {fields['code']}  {_printable(fields['message'])}"
    backend = f" > {fields['backend']}" if fields["backend"] else ""
    times = f"{fields['duration_ms'] / 1000:.2f} s"
    if fields["wait_ms"]:
        times += f", waited {fields['wait_ms'] / 1000:.2f}"
    if fields["first_content_ms"] is not None:
        times += f", first after {fields['first_content_ms'] / 1000:.2f}"
    extra = "  ".join(
        ["", *(_printable(note) for note in fields["notes"]), _printable(fields["detail"])]
    ).rstrip()
    return f"{clock}  {who}{backend}  {status} {fields['cause']} ({fields['phase']})  {times}{extra}  {fields['id']}"


def _printable(value: Any) -> str:
    return "" if value is None else _UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], str(value))


def stream_sink(stream: IO[Any]) -> Sink:
    """A sink that writes bytes to a file object, text or binary, and flushes after each batch."""
    binary = getattr(stream, "buffer", None)
    if binary is None and not isinstance(stream, io.RawIOBase | io.BufferedIOBase):

        def write_text(data: bytes) -> None:
            stream.write(data.decode())
            stream.flush()

        return write_text

    def write(data: bytes) -> None:
        # Through the stream each time: a text layer that nobody holds any more closes its bytes.
        target = stream.buffer if binary is not None else stream  # type: ignore[attr-defined]
        target.write(data)
        target.flush()

    return write


class _Target:
    """What the bound logger ends in: every level puts the finished fields into the writer."""

    def __init__(self, writer: LineWriter[_Entry]) -> None:
        put = writer.put
        self.debug = self.info = self.warning = self.error = self.critical = self.exception = put


class _Bridge(logging.Handler):
    """Messages of libraries (asyncio's unhandled exceptions, uvicorn's) in the same writer."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = max((n for n in LEVELS.values() if n <= record.levelno), default=10)
            extra = {"exc_info": record.exc_info} if record.exc_info else {}
            self._logger.log(level, record.getMessage(), logger=record.name, **extra)
        except Exception:
            self.handleError(record)


class Log:
    """The pipeline: a subscriber of the hub, a structlog logger, and the writer behind both.

    `format` is `auto` (people on a terminal, JSON elsewhere), `json` or `human`; `level` the least one
    written. Raises ValueError for another format or level.
    """

    name = "log"

    def __init__(
        self,
        stream: IO[Any] | None = None,
        *,
        format: str = "auto",
        level: str = "info",
        capacity: int = CAPACITY,
        sink: Sink | None = None,
    ) -> None:
        stream = stream if stream is not None else sys.stdout
        terminal = sink is None and stream.isatty()
        if format not in ("auto", "json", "human"):
            raise ValueError(f"log format must be auto, json or human, not {format!r}")
        if level not in LEVELS:
            raise ValueError(f"log level must be one of {', '.join(LEVELS)}, not {level!r}")
        if format == "auto":
            format = "human" if terminal else "json"
        self.format = format
        self._level = LEVELS[level]
        self._stamp = Stamp()
        self._processors = _renderers(format, colours=terminal)
        self._writer: LineWriter[_Entry] = LineWriter(
            sink if sink is not None else stream_sink(stream), self._render, lost=_lost, capacity=capacity
        )
        self._bridge: _Bridge | None = None
        #: The process's own messages: `log.logger.info("ready", public="http://…")`.
        self.logger: Any = structlog.wrap_logger(
            _Target(self._writer),
            processors=[
                structlog.processors.add_log_level,
                _stamp,
                structlog.processors.format_exc_info,
                redact,
                _hand_over,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(self._level),
        )

    def __call__(self, event: Event) -> None:
        """Take an event of the hub: a line for each request (info), backend change and unconfirmed drain."""
        if isinstance(event, _OF_REQUESTS):
            if self._level <= LEVELS[level_of(event)]:
                self._writer.put(event)
        elif isinstance(event, BackendChanged):
            say = self.logger.info if event.up and event.breaker == "closed" else self.logger.warning
            say("backend", backend=event.backend, up=event.up, breaker=event.breaker, reason=event.reason)
        elif isinstance(event, Drained) and event.evidence == "limit":
            # Contract B5: the end of patience is never silent.
            self.logger.warning("drain_unconfirmed", backend=event.backend, age_ms=milliseconds(event.age_s))

    def capture_stdlib(self, level: int = logging.WARNING) -> None:
        """Send the standard library's log records from `level` on through this writer, until `close`."""
        if self._bridge is None:
            self._bridge = _Bridge(self.logger)
            self._bridge.setLevel(level)
            logging.getLogger().addHandler(self._bridge)

    @property
    def dropped_total(self) -> int:
        """Lines that were not written: the sink was too slow, or broken."""
        return self._writer.dropped_total

    @property
    def written_total(self) -> int:
        """Lines that the sink has taken."""
        return self._writer.written_total

    def close(self, timeout_s: float = 2.0) -> bool:
        """Flush and stop within `timeout_s`; False if lines were left. Later ones are dropped and counted."""
        if self._bridge is not None:
            logging.getLogger().removeHandler(self._bridge)
            self._bridge = None
        return self._writer.close(timeout_s)

    def _render(self, entry: _Entry) -> bytes:
        fields: Any
        if isinstance(entry, _OF_REQUESTS):
            if self.format == "json":
                return json_line(entry, self._stamp)
            fields = request_fields(entry)
        else:
            fields = bound(None, "", entry)
        for process in self._processors:
            fields = process(None, "", fields)
        return fields if isinstance(fields, bytes) else f"{fields}\n".encode()


def _stamp(_logger: Any, _method: str, fields: Fields) -> Fields:
    first = ("level", "event")
    rest = {name: value for name, value in fields.items() if name != "at" and name not in first}
    return {"at": time.time(), **{name: fields.get(name) for name in first}, **rest}


def _hand_over(_logger: Any, _method: str, fields: Fields) -> tuple[tuple[Fields], Mapping[str, Any]]:
    return (fields,), {}


def _lost(count: int) -> Fields:
    return {"at": time.time(), "level": "warning", "event": "log_lines_dropped", "count": count}
