from __future__ import annotations

import json

import pytest

from bench import messages
from bench.messages import Plan


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(stream=True, tokens=7),
        Plan(stream=True, tokens=300, interval_ms=20, first_ms=20),
        Plan(stream=True, tokens=3, interval_ms=2, first_ms=0),
        Plan(stream=False, tokens=1),
    ],
)
def test_a_plan_survives_its_own_body(plan: Plan) -> None:
    assert messages.parse_plan(messages.request_body(plan)) == plan


def test_a_plan_is_read_from_bodies_that_others_write() -> None:
    body = b'{ "stream" : true, "max_completion_tokens": 9, "messages": [{"content": "hi [[bench interval=1s]]"}]}'
    assert messages.parse_plan(body) == Plan(stream=True, tokens=9, interval_ms=1000, first_ms=1000)
    assert messages.parse_plan(b'{"stream": false}') == Plan()
    assert messages.parse_plan(b'{"x": "[[bench tokens=5 interval=0ms]]", "max_tokens": 2}').tokens == 5


def test_a_duration_must_be_one() -> None:
    with pytest.raises(ValueError, match="not a duration"):
        messages.parse_plan(b"[[bench interval=soon]]")


def test_every_content_event_has_the_same_size() -> None:
    for number in (0, 7, 999, 1000, 123_456):
        event = messages.content_event(number)
        assert len(event) == messages.EVENT_BYTES
        assert event.startswith(b"data: {")
        assert event.endswith(b"\n\n")
        json.loads(event.removeprefix(b"data: "))


def test_a_stream_has_role_content_finish_and_marker() -> None:
    events = messages.stream_events(2)
    assert len(events) == messages.event_count(2)
    assert b'"role":"assistant"' in events[0]
    assert b'"finish_reason":"stop"' in events[-2]
    assert events[-1] == b"data: [DONE]\n\n"


def test_chunks_are_framed_each_by_itself() -> None:
    assert messages.framed(b"abc") == b"3\r\nabc\r\n"
    assert messages.framed([b"abc", b"0123456789abcdef"]) == b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n"


def test_a_request_announces_its_body_and_carries_its_key() -> None:
    head, _, body = messages.request(Plan(), host="127.0.0.1:1", key="k").partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert b"authorization: Bearer k" in head
    assert b"authorization" not in messages.request(Plan(), host="h")


def test_a_plain_answer_is_recognised_by_its_end() -> None:
    body = messages.plain_body()
    assert body.endswith(messages.PLAIN_TAIL)
    assert 400 < len(body) < 600
    assert json.loads(body)["object"] == "chat.completion"
