"""The bytes that the fake model server and the load generator agree on.

A request says how it wants to be answered in its own body, so that it gets through any proxy unharmed:
`"stream": true`, `max_tokens`, and a word in the prompt such as `[[bench interval=10ms first=0ms]]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

MODEL = "bench"
PATH = "/v1/chat/completions"
EVENT_BYTES = 165  # one content event, its blank line included
NUMBERED = 1000  # events carry their number modulo this
_ID = "cmpl-1"
_CREATED = 1700000000
_WORD = re.compile(rb"\[\[bench ([^\]]*)\]\]")
_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d+)')
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_DURATION = re.compile(r"^(\d+)(ms|s)?$")


@dataclass(frozen=True, slots=True)
class Plan:
    """How one request is to be answered. Times in milliseconds."""

    stream: bool = False
    tokens: int = 16
    interval_ms: int = 0  # between content events; 0: the whole stream at once
    first_ms: int = 0  # from the role chunk to the first content event


def request_body(plan: Plan) -> bytes:
    """The JSON body, about 150 bytes, that asks for `plan`."""
    word = f"[[bench interval={plan.interval_ms}ms first={plan.first_ms}ms]]"
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Say something. {word}"}],
        "max_tokens": plan.tokens,
    }
    if plan.stream:
        body["stream"] = True
    return json.dumps(body, separators=(",", ":")).encode()


def request(plan: Plan, *, host: str, key: str = "") -> bytes:
    """A whole request, head and body, as an HTTP/1.1 client with a bearer key sends it."""
    body = request_body(plan)
    lines = [
        f"POST {PATH} HTTP/1.1",
        f"host: {host}",
        "user-agent: bench/1",
        "accept: */*",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    if key:
        lines.append(f"authorization: Bearer {key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def parse_plan(body: bytes) -> Plan:
    """What a request's body asks for; what it does not say keeps its default."""
    words: dict[str, int] = {}
    found = _WORD.search(body)
    if found is not None:
        for word in found.group(1).decode("latin-1").split():
            name, _, value = word.partition("=")
            words[name] = _milliseconds(value) if name != "tokens" else int(value)
    limit = _MAX_TOKENS.search(body)
    default = int(limit.group(1)) if limit is not None else 16
    interval_ms = words.get("interval", 0)
    return Plan(
        stream=_STREAM.search(body) is not None,
        tokens=words.get("tokens", default),
        interval_ms=interval_ms,
        first_ms=words.get("first", interval_ms),
    )


def _milliseconds(text: str) -> int:
    found = _DURATION.match(text)
    if found is None:
        raise ValueError(f"not a duration: {text!r}")
    return int(found.group(1)) * (1000 if found.group(2) == "s" else 1)


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    chunk = {
        "id": _ID,
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def content_event(number: int) -> bytes:
    """Content event `number`, EVENT_BYTES long; its text ends in the number modulo NUMBERED."""
    number %= NUMBERED
    padding = EVENT_BYTES - len(_event({"content": f" {number:03d}"}))
    return _event({"content": f" {'t' * padding}{number:03d}"})


ROLE_EVENT = _event({"role": "assistant", "content": ""})
FINISH_EVENT = _event({}, "stop")
DONE_EVENT = b"data: [DONE]\n\n"


def stream_events(tokens: int) -> list[bytes]:
    """All events of a stream with so many content events: role, content, finish reason, marker."""
    return [ROLE_EVENT, *(content_event(n) for n in range(tokens)), FINISH_EVENT, DONE_EVENT]


def event_count(tokens: int) -> int:
    """How many events such a stream has."""
    return tokens + 3


def framed(data: bytes | Sequence[bytes]) -> bytes:
    """`data` as one chunk of a chunked body, or several chunks."""
    pieces = [data] if isinstance(data, bytes) else data
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


LAST_CHUNK = b"0\r\n\r\n"


def plain_body() -> bytes:
    """The JSON of a plain answer, about 500 bytes."""
    text = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 3
    answer = {
        "id": _ID,
        "object": "chat.completion",
        "created": _CREATED,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text.strip()},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 16, "total_tokens": 28},
    }
    return json.dumps(answer, separators=(",", ":")).encode()


PLAIN_TAIL = plain_body()[-60:]  # how a whole plain answer ends
