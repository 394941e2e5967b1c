"""Request ids and W3C trace context."""

from __future__ import annotations

from typing import Any

import pytest

from inferencemesh.wire.fields import parse_traceparent, valid_request_id
from inferencemesh.wire.trace import TraceContext, new_request_id, next_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def counting(size: int) -> bytes:
    return bytes(range(1, size + 1))


def test_a_traceparent_is_read_and_written_back() -> None:
    raw = f"00-{TRACE}-{SPAN}-01".encode()
    context = parse_traceparent(raw)
    assert context == TraceContext(TRACE, SPAN, 1)
    assert context.sampled
    assert context.encode() == raw


def test_a_later_version_is_read_as_far_as_this_one_goes() -> None:
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-fd-what-the-future".encode()) == TraceContext(TRACE, SPAN, 1)
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01".encode()) == TraceContext(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"00",
        f"ff-{TRACE}-{SPAN}-01".encode(),
        f"00-{TRACE}-{SPAN}-01-more".encode(),
        f"cc-{TRACE}-{SPAN}-01.more".encode(),
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE.upper()}-{SPAN}-01".encode(),
        f"00-{TRACE}-{SPAN}-1".encode(),
        f"00-{TRACE}-{SPAN}-01\n00".encode(),
        b"\xff" * 55,
    ],
)
def test_an_invalid_traceparent_begins_a_new_trace(raw: Any) -> None:
    assert parse_traceparent(raw) is None


def test_the_next_hop_keeps_trace_and_flags_and_has_its_own_span() -> None:
    child = next_traceparent(TraceContext(TRACE, SPAN, 1), entropy=counting)
    assert child == TraceContext(TRACE, "0102030405060708", 1)


def test_a_new_trace_is_valid_whatever_the_entropy() -> None:
    for sampled in (False, True):
        context = next_traceparent(None, sampled=sampled, entropy=bytes)
        assert parse_traceparent(context.encode()) == context
        assert context.sampled is sampled
    assert next_traceparent(None) != next_traceparent(None)


def test_new_request_ids_are_valid_unique_and_of_one_length() -> None:
    made = {new_request_id() for _ in range(100)}
    assert len(made) == 100
    assert {len(name) for name in made} == {36}
    assert all(valid_request_id(name.encode()) == name for name in made)
