"""Errors in both APIs' shapes (contract A10, C2, C8; field fault T13)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferencemesh.core.errors import ERRORS, MeshError
from inferencemesh.core.outcome import Phase
from inferencemesh.wire.render import STREAM_HEADERS, Api, error_event, error_response
from inferencemesh.wire.sse import parse_event, split_events


def respond(err: Any, api: Api = "openai") -> Any:
    status, headers, body = error_response(err, api=api, request_id="req-1", phase=Phase.BEFORE_HEADERS)
    assert len({name for name, _ in headers}) == len(headers)
    return status, dict(headers), json.loads(body)


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_openai_shape_of_every_row(code: str) -> None:
    status, headers, body = respond(MeshError(code, "what to do", param="p"))
    assert status == ERRORS[code].status
    assert body == {"error": {"message": "what to do", "type": ERRORS[code].type, "code": code, "param": "p"}}
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"] == headers[b"request-id"] == b"req-1"
    assert headers[b"x-mesh-code"] == code.encode()
    assert headers[b"x-mesh-phase"] == b"before_headers"


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_anthropic_shape_of_every_row(code: str) -> None:
    status, _, body = respond(MeshError(code, "what to do"), "anthropic")
    assert status == (529 if ERRORS[code].status == 503 else ERRORS[code].status)
    assert body["type"] == "error"
    assert body["request_id"] == "req-1"
    assert body["error"]["message"] == "what to do"
    assert body["error"]["type"] == ("rate_limit_error" if status == 429 else ERRORS[code].anthropic_type)


@pytest.mark.parametrize("code", [code for code, spec in ERRORS.items() if spec.refusal])
def test_every_refusal_says_when_to_come_back(code: str) -> None:
    """A10."""
    _, headers, _ = respond(MeshError(code, "m"))
    assert headers[b"retry-after"] == b"1"
    assert headers[b"retry-after-ms"] == b"1000"
    assert b"x-should-retry" not in headers


@pytest.mark.parametrize(
    ("wait_s", "whole", "ms"),
    [
        (2.25, b"3", b"2250"),
        (0.05, b"1", b"1000"),
        (60.0, b"60", b"60000"),
        (900.0, b"60", b"60000"),
        (-1.0, b"1", b"1000"),
    ],
)
def test_the_wait_is_whole_seconds_rounded_up_within_bounds(wait_s: Any, whole: Any, ms: Any) -> None:
    _, headers, _ = respond(MeshError("queue_full", "m", retry_after_s=wait_s))
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (whole, ms)


def test_other_errors_carry_a_wait_only_if_they_name_one() -> None:
    assert b"retry-after" not in respond(MeshError("upstream_error", "m"))[1]
    assert respond(MeshError("upstream_error", "m", retry_after_s=4.0))[1][b"retry-after"] == b"4"


def test_where_coming_back_cannot_help_the_sdks_are_told() -> None:
    for code in ("request_timeout", "insufficient_quota", "upstream_auth"):
        _, headers, _ = respond(MeshError(code, "m", retry_after_s=3.0))
        assert headers[b"x-should-retry"] == b"false"
        assert b"retry-after" not in headers


def test_a_status_set_by_the_configuration_wins() -> None:
    """admission.overload_status: 429."""
    err = MeshError("queue_full", "m", status=429)
    assert respond(err)[0] == 429
    status, _, body = respond(err, "anthropic")
    assert (status, body["error"]["type"]) == (429, "rate_limit_error")


def test_an_unknown_code_is_our_own_bug_and_still_an_answer() -> None:
    status, headers, body = respond(MeshError("no_such_code", "m"))
    assert (status, headers[b"x-mesh-code"], body["error"]["code"]) == (500, b"internal", "internal")


def test_details_are_never_shown() -> None:
    err = MeshError("internal", "m", details={"key": "sk-secret"})
    for api in ("openai", "anthropic"):
        _, headers, body = error_response(err, api=api, request_id="r", phase=Phase.BEFORE_CONTENT)
        assert b"sk-secret" not in body + repr(headers).encode() + error_event(err, api=api, request_id="r")


@pytest.mark.parametrize(
    "message", ["lone \ud800 surrogate", 'quote " \\ \n newline', "日本 😀", "x" * 100_000]
)
def test_any_text_can_be_sent(message: Any) -> None:
    _, _, body = respond(MeshError("upstream_error", message))
    assert body["error"]["message"][:5] == message[:5]
    event = error_event(MeshError("upstream_error", message), api="openai", request_id="r")
    assert list(split_events(event)) == [event]
    assert len(event) < 10_000


def test_error_event_of_chat() -> None:
    """T13, C2: a nameless event with an `error` object, as the official client raises on."""
    event = error_event(MeshError("upstream_reset", "gone"), api="openai", request_id="req-1")
    assert event == (
        b'data: {"error":{"message":"gone","type":"api_error","code":"upstream_reset","param":null}}\n\n'
    )


def test_error_event_of_messages() -> None:
    """T13, C2: named, since the official client skips events without a name."""
    event = error_event(MeshError("queue_timeout", "late"), api="anthropic", request_id="req-1")
    parsed = parse_event(event)
    assert event.endswith(b"\n\n")
    assert parsed.name == b"error"
    assert json.loads(parsed.data) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "late"},
        "request_id": "req-1",
    }


def test_streams_are_neither_cached_nor_buffered() -> None:
    headers = dict(STREAM_HEADERS)
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-cache, no-transform"
    assert headers[b"x-accel-buffering"] == b"no"
