"""Header fields in both directions (contract G3, A7; field faults H1, H4; the smuggling probes)."""

from __future__ import annotations

from typing import Any

import pytest

from inferencemesh.core.errors import MeshError
from inferencemesh.wire.fields import (
    HOP_BY_HOP,
    VIA,
    credentials,
    format_mesh_timeout,
    forward_request_headers,
    forward_response_headers,
    parse_mesh_timeout,
    valid_request_id,
)


def names(headers: Any) -> Any:
    return [name for name, _ in headers]


def test_ordinary_request_fields_pass_in_order_and_via_is_added() -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"user-agent", b"OpenAI/Python"),
        (b"x-stainless-retry-count", b"1"),
        (b"anthropic-version", b"2023-06-01"),
        (b"accept", b"text/event-stream"),
        (b"via", b"1.1 edge"),
    ]
    assert forward_request_headers(headers) == [*headers, (b"via", VIA)]


@pytest.mark.parametrize(
    "name",
    [
        *sorted(HOP_BY_HOP),
        b"content-length",
        b"host",
        b"expect",
        b"accept-encoding",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"cookie",
        b"x-request-id",
        b"x-mesh-timeout",
        b"x-mesh-class",
        b"x-conversation-id",
        b"x-data-parallel-rank",
        b"x-override-rid",
        b"x-smg-priority",
        b"x-forwarded-for",
        b"forwarded",
        b"traceparent",
        b"origin",
    ],
)
def test_request_fields_that_stop_at_the_gateway(name: bytes) -> None:
    """G3: framing, hop-by-hop, credentials, and what engines would act upon; in any letter case."""
    assert forward_request_headers([(name, b"v"), (name.upper(), b"v")]) == [(b"via", VIA)]


@pytest.mark.parametrize(
    "name",
    [
        *sorted(HOP_BY_HOP),
        b"content-length",
        b"server",
        b"date",
        b"set-cookie",
        b"authorization",
        b"x-api-key",
        b"www-authenticate",
        b"x-request-id",
        b"request-id",
        b"alt-svc",
        b"x-mesh-queue-ms",
        b"x-ratelimit-remaining-requests",
        b"anthropic-ratelimit-tokens-limit",
        b"retry-after",
        b"access-control-allow-origin",
        b"openai-organization",
    ],
)
def test_response_fields_that_stop_at_the_gateway(name: bytes) -> None:
    """G3, H4: one Server, one Date, one framing: ours."""
    assert forward_response_headers([(name, b"v"), (name.upper(), b"v")]) == []


def test_ordinary_response_fields_pass() -> None:
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"openai-model", b"m"),
        (b"openai-processing-ms", b"12"),
        (b"content-encoding", b"gzip"),
        (b"x-custom", b"1"),
    ]
    assert forward_response_headers(headers) == headers


def test_fields_that_connection_names_are_dropped() -> None:
    """H4: `Connection: x-a`, also in capitals, in a list, before or behind the field that it names."""
    headers = [
        (b"Connection", b"X-A , close"),
        (b"x-a", b"1"),
        (b"X-A", b"2"),
        (b"x-b", b"3"),
        (b"x-c", b"4"),
        (b"connection", b"x-c"),
    ]
    assert names(forward_response_headers(headers)) == [b"x-b"]
    assert names(forward_request_headers(headers)) == [b"x-b", b"via"]


def test_via_survives_being_named_by_connection() -> None:
    assert forward_request_headers([(b"connection", b"via"), (b"via", b"1.1 x")]) == [(b"via", VIA)]


def test_kept_fields_are_let_through_but_never_framing() -> None:
    """H1: exactly one framing, whatever the caller of the function asks for."""
    headers = [(b"Retry-After", b"7"), (b"content-length", b"3"), (b"transfer-encoding", b"chunked")]
    keep = (b"retry-after", b"content-length", b"transfer-encoding")
    assert forward_response_headers(headers, keep) == [(b"retry-after", b"7")]


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb", b"a\0b"])
def test_a_value_never_becomes_two_fields(value: Any) -> None:
    assert forward_request_headers([(b"x-a", value), (b"x-b", b"ok")]) == [(b"x-b", b"ok"), (b"via", VIA)]
    assert forward_response_headers([(b"x-a", value)]) == []


@pytest.mark.parametrize(
    ("headers", "keys"),
    [
        ([], []),
        ([(b"authorization", b"Bearer k1")], [b"k1"]),
        ([(b"Authorization", b"bearer   k1 ")], [b"k1"]),
        ([(b"x-api-key", b" k2 ")], [b"k2"]),
        ([(b"authorization", b"Bearer k1"), (b"x-api-key", b"k1")], [b"k1"]),
        ([(b"authorization", b"Bearer k1"), (b"x-api-key", b"k2")], [b"k1", b"k2"]),
        ([(b"authorization", b"Bearer k1"), (b"authorization", b"Bearer k3")], [b"k1", b"k3"]),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"")], []),
        ([(b"authorization", b"Bearer"), (b"authorization", b"Bearer  ")], []),
    ],
)
def test_credentials(headers: Any, keys: Any) -> None:
    assert credentials(headers) == keys


@pytest.mark.parametrize("raw", [b"a", b"A-1_b.c", b"x" * 128])
def test_request_ids_that_are_kept(raw: Any) -> None:
    assert valid_request_id(raw) == raw.decode()


@pytest.mark.parametrize("raw", [None, b"", b"x" * 129, b"a b", b"a\n", b"a/b", "é".encode(), b'"', b"\xff"])
def test_request_ids_that_are_replaced(raw: Any) -> None:
    assert valid_request_id(raw) is None


@pytest.mark.parametrize(
    ("raw", "seconds"), [(b"2.5", 2.5), (b" 30 ", 30.0), (b".5", 0.5), (b"7.", 7.0), (b"0.001", 0.001)]
)
def test_mesh_timeout_in_seconds(raw: Any, seconds: Any) -> None:
    """A7."""
    assert parse_mesh_timeout(raw) == seconds


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"0",
        b"0.0",
        b"-1",
        b"+1",
        b"1e3",
        b"inf",
        b"nan",
        b"10s",
        b"1,5",
        b"1_0",
        b"9" * 10,
        "१".encode(),
        b".",
    ],
)
def test_nonsense_in_mesh_timeout_is_refused(raw: Any) -> None:
    with pytest.raises(MeshError) as caught:
        parse_mesh_timeout(raw)
    assert caught.value.code == "invalid_request"
    assert caught.value.param == "x-mesh-timeout"


@pytest.mark.parametrize("left_s", [12.3456, 0.0004, 0.0, -3.0, 600.0])
def test_what_is_left_of_the_deadline_is_readable_by_the_next_gateway(left_s: Any) -> None:
    assert parse_mesh_timeout(format_mesh_timeout(left_s)) == pytest.approx(max(left_s, 0.001), abs=6e-4)


def test_a_decision_that_is_remembered_is_the_same() -> None:
    headers = [(b"X-Mesh-Backend", b"1"), (b"Accept", b"*/*"), (b"x-new", b"2"), (b"connection", b"x-new")]
    kept = forward_request_headers(headers)
    assert kept == [(b"accept", b"*/*"), (b"via", VIA)]
    lower = [(name.lower(), value) for name, value in headers]
    for again in (headers, lower, lower, headers):
        assert forward_request_headers(again) == kept
    for number in range(2_000):  # more names than are remembered
        assert forward_response_headers([(b"x-%d" % number, b"1")]) == [(b"x-%d" % number, b"1")]
        assert forward_response_headers([(b"x-mesh-%d" % number, b"1")]) == []
