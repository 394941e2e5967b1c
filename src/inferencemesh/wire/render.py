"""Errors as callers see them: a whole response before the stream, one event inside it (contract C2, C8).

One place renders both APIs' shapes, so that a code means the same in a status line and in a stream. Only
`message`, `code`, `param` and what is `told` of an error are shown; `details` never are.
"""

from __future__ import annotations

import math
from typing import Literal

import orjson

from inferencemesh.core.errors import ERRORS, ErrorSpec, MeshError
from inferencemesh.core.outcome import Phase
from inferencemesh.wire.tracker import clean_text

Api = Literal["openai", "anthropic"]

#: Head of every event stream: not cached, not transformed, not buffered by proxies in front.
STREAM_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0  # the official OpenAI client gives up on waits above 120 s
ANTHROPIC_OVERLOADED = 529


def error_response(
    err: MeshError, *, api: Api, request_id: str, phase: Phase
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of an error before the response has started. Framing headers are the server's.

    Refusals carry `retry-after` (whole seconds, 1 to 60) and `retry-after-ms` (the same wait exactly), so
    does every other error that names a wait; `x-should-retry: false` stands where coming back cannot help.
    """
    spec = _spec(err)
    status = _status(err, spec, api)
    raw_id = request_id.encode("ascii", "replace")
    headers = [
        (b"content-type", b"application/json"),
        (b"x-request-id", raw_id),
        (b"request-id", raw_id),
        (b"x-mesh-code", spec.code.encode("ascii")),
        (b"x-mesh-phase", phase.value.encode("ascii")),
    ]
    if spec.never_retry:
        headers.append((b"x-should-retry", b"false"))
    elif spec.refusal or err.retry_after_s is not None:
        wait_s = min(max(err.retry_after_s or 0.0, MIN_RETRY_S), MAX_RETRY_S)
        headers.append((b"retry-after", b"%d" % math.ceil(wait_s)))
        headers.append((b"retry-after-ms", b"%d" % round(wait_s * 1000)))
    return status, headers, _body(err, spec, status, api, request_id)


def error_event(err: MeshError, *, api: Api, request_id: str) -> bytes:
    """One complete event that ends a started stream in failure; no success marker follows it (C2).

    Anthropic clients only see named events, OpenAI clients need the `error` object in the data.
    """
    spec = _spec(err)
    body = _body(err, spec, _status(err, spec, api), api, request_id)
    return b"event: error\ndata: " + body + b"\n\n" if api == "anthropic" else b"data: " + body + b"\n\n"


def _spec(err: MeshError) -> ErrorSpec:
    return ERRORS.get(err.code) or ERRORS["internal"]


def _status(err: MeshError, spec: ErrorSpec, api: Api) -> int:
    status = err.status if err.status is not None else spec.status
    return ANTHROPIC_OVERLOADED if api == "anthropic" and status == 503 else status


def _body(err: MeshError, spec: ErrorSpec, status: int, api: Api, request_id: str) -> bytes:
    message = clean_text(err.message)
    if api == "anthropic":
        # The SDK takes its class from the status, but shows the type: a service limit set to 429 is a rate
        # limit.
        kind = "rate_limit_error" if status == 429 else spec.anthropic_type
        error = {"type": kind, "message": message, **err.told}
        return orjson.dumps({"type": "error", "error": error, "request_id": clean_text(request_id)})
    param = clean_text(err.param) if err.param is not None else None
    body = {"message": message, "type": spec.type, "code": spec.code, "param": param, **err.told}
    return orjson.dumps({"error": body})
