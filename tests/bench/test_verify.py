from __future__ import annotations

from bench import messages, verify

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _plain(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def _stream(events: list[bytes]) -> bytes:
    return _HEAD + messages.framed(events) + messages.LAST_CHUNK


def test_good_answers_have_no_fault() -> None:
    assert verify.plain_fault(_plain(messages.plain_body())) is None
    assert verify.stream_fault(_stream(messages.stream_events(5)), 5) is None


def test_framing_and_comments_do_not_matter() -> None:
    joined = b"".join(messages.stream_events(3))
    whole = _HEAD + messages.framed(joined) + messages.LAST_CHUNK
    assert verify.stream_fault(whole, 3) is None
    with_comment = [b": keep-alive\n\n", *messages.stream_events(3)]
    assert verify.stream_fault(_stream(with_comment), 3) is None


def test_a_status_and_a_body_are_looked_at() -> None:
    assert "status 503" in str(verify.plain_fault(_plain(b"{}", b"503 Service Unavailable")))
    assert "another body" in str(verify.plain_fault(_plain(b"{}")))


def test_a_cut_answer_is_a_fault() -> None:
    assert "incomplete" in str(verify.plain_fault(_plain(messages.plain_body())[:-1]))
    assert "incomplete" in str(verify.stream_fault(_HEAD + messages.framed(messages.ROLE_EVENT), 1))
    assert "not HTTP" in str(verify.plain_fault(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"))


def test_a_missing_marker_a_lost_and_a_changed_event_are_faults() -> None:
    events = messages.stream_events(4)
    assert "no [DONE]" in str(verify.stream_fault(_stream(events[:-1]), 4))
    assert "event 2 is" in str(verify.stream_fault(_stream([*events[:2], *events[3:]]), 4))
    assert "event 1 is" in str(
        verify.stream_fault(_stream([events[0], events[2], events[1], *events[3:]]), 4)
    )
    assert "7 events, not 6" in str(verify.stream_fault(_stream(events), 3)) or "event 4" in str(
        verify.stream_fault(_stream(events), 3)
    )
