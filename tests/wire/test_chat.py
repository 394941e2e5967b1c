"""The chat tracker: content, completion, errors in the stream, at any split (contract C1, C3)."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferencemesh.wire.chat import ChatTracker, plain_result
from inferencemesh.wire.sse import Scanner, split_events
from inferencemesh.wire.tracker import InBandError, StreamTracker, Usage

DONE = b"data: [DONE]\n\n"


def event(value: Any, *, spaced: bool = False) -> bytes:
    text = json.dumps(value, ensure_ascii=False) if spaced else json.dumps(value, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def chunk(
    delta: dict[str, Any], finish: Any = None, index: int = 0, *, spaced: bool = False, **more: Any
) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}, spaced=spaced)


def text(content: str, **more: Any) -> bytes:
    return chunk({"content": content}, **more)


ROLE = chunk({"role": "assistant", "content": ""})
STOP = chunk({}, "stop")
USAGE = event(
    {"id": "c", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}
)


def run(stream: bytes, choices: int = 1) -> tuple[ChatTracker, int]:
    """Everything in one block."""
    tracker = ChatTracker(choices)
    return tracker, tracker.feed(stream)


def state(tracker: ChatTracker) -> tuple[Any, ...]:
    return (
        tracker.content,
        tracker.marker,
        tracker.finished,
        tracker.complete,
        tracker.error,
        tracker.usage,
        tracker.events,
        tracker.notes,
        tracker.finish_reasons,
    )


def through(pieces: list[bytes], choices: int = 1) -> tuple[ChatTracker, bytes]:
    """As the relay does it: scanner, then tracker, then what may pass."""
    scanner, tracker, passed = Scanner(1 << 20), ChatTracker(choices), b""
    for piece in pieces:
        block = scanner.feed(piece)
        passed += block[: tracker.feed(block)]
    return tracker, passed


def test_it_is_a_stream_tracker() -> None:
    tracker: StreamTracker = ChatTracker()
    assert not tracker.complete
    assert tracker.notes == ()
    assert tracker.feed(b"") == 0


# --- content (C1) ---


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"content": " "},
        {"content": [{"type": "text", "text": "x"}]},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"reasoning_details": [{"text": "x"}]},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "id": None, "function": {"arguments": ""}}]},
        {"function_call": {"name": "f"}},
        {"audio": {"data": "AA"}},
    ],
)
@pytest.mark.parametrize("spaced", [False, True])
def test_what_content_is(delta: Any, spaced: Any) -> None:
    """C1: text, reasoning, a refusal, a tool call, a function call, audio."""
    tracker, _ = run(ROLE + chunk({"role": "assistant", **delta}, spaced=spaced))
    assert tracker.content
    assert not tracker.complete


@pytest.mark.parametrize(
    "raw",
    [
        ROLE,
        chunk({"role": "assistant"}),
        chunk({"role": "assistant", "content": None}),
        chunk({}),
        chunk({"content": "", "reasoning_content": None, "tool_calls": [], "audio": {}}),
        chunk({"content": ""}, finish=""),
        event({"choices": [], "prompt_filter_results": [{"content_filter_results": {}}]}),
        event({"choices": None}),
        event({"object": "chat.completion.chunk"}),
        event({"choices": [None, "x", {"delta": None}, {"delta": "x"}]}),
        event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}),
        b": ping\n\n",
        b": keep-alive\ndata:\n\n",
        b"event: ping\n\n",
        b"id: 1\nretry: 5\n\n",
        b"\n",
    ],
)
def test_what_content_is_not(raw: Any) -> None:
    """P14: a role-only or empty chunk is not the first token; P10: nor is a comment."""
    tracker, passed = run(raw)
    assert not tracker.content
    assert tracker.error is None
    assert not tracker.complete
    assert passed == len(raw)


def test_text_of_completions_is_content() -> None:
    tracker, _ = run(
        event({"object": "text_completion", "choices": [{"index": 0, "text": "x", "finish_reason": None}]})
    )
    assert tracker.content


def test_an_empty_answer_is_an_answer() -> None:
    """C1: a finish reason ends the preamble, so does the marker: there is nothing more to wait for."""
    assert run(ROLE + STOP)[0].content
    assert run(ROLE + DONE)[0].content


# --- completion (C3) ---


def test_t6_finish_and_marker_is_success() -> None:
    tracker, passed = run(ROLE + text("a") + STOP + DONE)
    assert (tracker.finished, tracker.marker, tracker.complete, tracker.notes) == (True, True, True, ())
    assert passed == len(ROLE + text("a") + STOP + DONE)


def test_t6_finish_without_marker_is_success_with_a_note() -> None:
    tracker, _ = run(ROLE + text("a") + STOP)
    assert (tracker.finished, tracker.marker, tracker.complete) == (True, False, True)
    assert tracker.notes == ("marker_missing",)


def test_t6_marker_without_finish_is_complete_under_its_own_label() -> None:
    tracker, _ = run(ROLE + text("a") + DONE)
    assert (tracker.finished, tracker.marker, tracker.complete) == (False, True, True)
    assert tracker.notes == ("finish_missing",)


def test_t6_t1_neither_is_not_complete() -> None:
    tracker, _ = run(ROLE + text("a") + text("b"))
    assert not tracker.complete
    assert tracker.notes == ()


def test_t2_no_event_at_all_is_not_complete() -> None:
    tracker, _ = run(b": hello\n\n")
    assert (tracker.content, tracker.complete) == (False, False)


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls", "abort", "unheard_of", {"type": "stop"}])
@pytest.mark.parametrize("spaced", [False, True])
def test_any_finish_reason_counts(finish: Any, spaced: Any) -> None:
    tracker, _ = run(ROLE + text("a") + chunk({}, finish, spaced=spaced))
    assert tracker.finished
    assert tracker.finish_reasons == {0: finish if isinstance(finish, str) else "other"}


@pytest.mark.parametrize("colon", [b'":"', b'": "', b'" : "', b'"\t:\t"', b'":\ndata:"'])
def test_a_finish_reason_is_seen_in_any_spacing(colon: Any) -> None:
    tracker, _ = run(ROLE + text("a") + STOP.replace(b'finish_reason":"', b"finish_reason" + colon))
    assert tracker.finished


def test_u13_every_choice_must_finish() -> None:
    stream = text("a") + text("b", index=1) + chunk({}, "stop", 0)
    tracker, _ = run(stream, choices=2)
    assert (tracker.finished, tracker.complete) == (False, False)
    assert tracker.feed(chunk({}, "length", 1)) > 0
    assert (tracker.finished, tracker.complete) == (True, True)
    assert tracker.finish_reasons == {0: "stop", 1: "length"}


def test_u13_one_choice_twice_is_not_two_choices() -> None:
    tracker, _ = run(text("a") + STOP + STOP, choices=2)
    assert not tracker.finished


def test_u13_several_choices_in_one_chunk() -> None:
    both = event(
        {"choices": [{"index": i, "delta": {"content": "x"}, "finish_reason": "stop"} for i in (0, 1)]}
    )
    assert run(both, choices=2)[0].finished


@pytest.mark.parametrize("index", [1, -1, 10**9, "0", None, 0.0])
def test_an_index_that_was_not_asked_for_finishes_nothing(index: Any) -> None:
    tracker, _ = run(text("a") + chunk({}, "stop", index))
    assert (tracker.finished, len(tracker.finish_reasons)) == (False, 0)


# --- the marker ---


@pytest.mark.parametrize(
    "raw",
    [DONE, b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data: [DONE]\r\r", b": c\nid: 3\ndata: [DONE]\n\n"],
)
def test_p1_the_marker_in_its_spellings(raw: Any) -> None:
    assert run(text("a") + raw)[0].marker


@pytest.mark.parametrize(
    "raw",
    [
        b"data: [DONE]x\n\n",
        b"data: x[DONE]\n\n",
        b"data:  [DONE]\n\n",
        b"data: [DONE] \n\n",
        b"data: [DONE]\ndata: \n\n",
        b'data: "[DONE]"\n\n',
        b": [DONE]\n\n",
        b"event: [DONE]\n\n",
        b"data: [done]\n\n",
        text("[DONE] is a word"),
        text("[DONE]"),
        text("\ndata: [DONE]\n\n"),
    ],
)
def test_t9_the_marker_is_the_whole_data(raw: Any) -> None:
    for before in (b"", text("a")):
        tracker, passed = run(before + raw)
        assert not tracker.marker
        assert tracker.error is None
        assert passed == len(before + raw)


def test_t8_a_second_marker_is_dropped() -> None:
    for pieces in ([text("a") + STOP + DONE + DONE], [text("a") + STOP, DONE, DONE]):
        tracker, passed = through(pieces)
        assert passed == text("a") + STOP + DONE
        assert tracker.notes == ("repeated_marker",)
        assert tracker.complete


def test_what_follows_the_marker_is_dropped_but_comments() -> None:
    tracker, _ = run(text("a") + DONE)
    assert tracker.feed(b": bye\n\n") == len(b": bye\n\n")
    assert tracker.feed(b"\n") == 1
    assert tracker.feed(b": a\n\n" + text("late") + b": b\n\n") == len(b": a\n\n")
    assert tracker.feed(event({"error": {"message": "late"}})) == 0
    assert tracker.error is None
    assert tracker.notes == ("event_after_marker", "finish_missing")
    assert tracker.events == 1


# --- errors in the stream (C3, P15, T3) ---

SHAPES = [
    (event({"error": {"message": "m", "type": "t", "code": 503}}), InBandError("m", "t", 503, 503)),
    (event({"error": {"message": "m", "type": "t", "code": "429"}}), InBandError("m", "t", "429", 429)),
    (event({"error": {"message": "m", "type": "t", "code": "bad"}}), InBandError("m", "t", "bad", None)),
    (event({"error": {"message": "m", "http_status_code": 422}}), InBandError("m", None, None, 422)),
    (event({"error": {"message": "m", "code": 7, "status": 500}}), InBandError("m", None, 7, 500)),
    (event({"error": {"message": "m", "code": 200}}), InBandError("m", None, 200, None)),
    (event({"error": {"message": "m", "code": True}}), InBandError("m", None, None, None)),
    (event({"error": {"message": "m"}, "status": "503"}), InBandError("m", None, None, 503)),
    (event({"error": "text"}), InBandError("text", None, None, None)),
    (
        event({"error": "Model is overloaded", "error_type": "overloaded"}),
        InBandError("Model is overloaded", "overloaded"),
    ),
    (
        event({"object": "error", "message": "m", "type": "BadRequest", "param": None, "code": 400}),
        InBandError("m", "BadRequest", 400, 400),
    ),
    (
        event(
            {
                "error": {
                    "object": "error",
                    "message": "The request queue is full.",
                    "type": "SERVICE_UNAVAILABLE",
                    "code": 503,
                }
            }
        ),
        InBandError("The request queue is full.", "SERVICE_UNAVAILABLE", 503, 503),
    ),
    (event({"object": "error", "message": "m", "type": "503"}), InBandError("m", "503", None, 503)),
    (
        event({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}),
        InBandError("m", "overloaded_error"),
    ),
    (event({"type": "error", "code": "x", "message": "m"}), InBandError("m", "error", "x")),
    (b"event: error\n" + event({"error": {"message": "m", "code": 500}}), InBandError("m", None, 500, 500)),
    (b"event: error\n" + event({"message": "m", "code": 500}), InBandError("m", None, 500, 500)),
    (b"event:error\ndata: plain text\n\n", InBandError("plain text")),
    (b"data: {}\nevent: error\n\n", InBandError("the upstream reported an error without a message")),
    (
        b'error: {"code":500,"message":"m","type":"server_error"}\n\n',
        InBandError("m", "server_error", 500, 500),
    ),
    (b'error:{"error":{"code":503,"message":"m"}}\n\n', InBandError("m", None, 503, 503)),
    (b"error: text\n\n", InBandError("text")),
    (event({"error": {}}), InBandError("the upstream reported an error without a message")),
    (event({"error": True}), InBandError("the upstream reported an error without a message")),
    (event({"error": {"detail": "d"}}), InBandError("d")),
    (
        event(
            {
                "error": {"code": 502, "message": "m"},
                "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
            }
        ),
        InBandError("m", None, 502, 502),
    ),
]


@pytest.mark.parametrize(("raw", "error"), SHAPES)
def test_p15_t3_every_shape_is_an_error_at_the_start_and_later(raw: Any, error: Any) -> None:
    for before in (b"", ROLE, ROLE + text("a") * 9, text("a", spaced=True)):
        stream = before + raw + DONE
        tracker, passed = run(stream)
        assert tracker.error == error
        assert passed == len(before)
        assert (tracker.complete, tracker.marker) == (False, False)
        assert tracker.feed(DONE + b": c\n\n") == 0


@pytest.mark.parametrize(("raw", "error"), SHAPES)
@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
def test_errors_in_other_line_ends(raw: Any, error: Any, line_end: bytes) -> None:
    before = (ROLE + text("a")).replace(b"\n", line_end)
    tracker, passed = run(before + raw.replace(b"\n", line_end))
    assert (tracker.error, passed) == (error, len(before))


@pytest.mark.parametrize(
    "raw",
    [
        text('{"error": {"message": "m"}}'),
        text('"error"'),
        text("error"),
        text("event: error\ndata: x\n\n"),
        text("\nerror: {}"),
        chunk({"tool_calls": [{"function": {"name": "error", "arguments": '{"error":"x"}'}}]}),
        chunk({"content": "x"}, error=None),
        chunk({"content": "x"}, error=False),
        chunk({"content": "x"}, error=""),
        chunk({"content": "x"}, error={}),
        b": error\n\n",
        b"event: errors\ndata: {}\n\n",
        b"event: my-error\ndata: {}\n\n",
        b"errors: x\n\n",
        text('"finish_reason":"stop"'),
        text('"usage":{"prompt_tokens":1}'),
    ],
)
def test_text_about_errors_is_not_an_error(raw: Any) -> None:
    for before in (b"", text("a"), text("a", spaced=True)):
        tracker, passed = run(before + raw + text("b"))
        assert tracker.error is None
        assert not tracker.complete
        assert tracker.usage is None
        assert passed == len(before + raw + text("b"))


def test_an_error_after_the_finish_reason_is_a_failure() -> None:
    tracker, passed = run(text("a") + STOP + event({"error": "x"}) + DONE)
    assert (tracker.finished, tracker.complete) == (True, False)
    assert passed == len(text("a") + STOP)
    assert tracker.notes == ()


def test_an_upstream_message_is_bounded_and_can_be_encoded() -> None:
    tracker, _ = run(b'data: {"error":{"message":"\\ud83d' + b"x" * 100_000 + b'"}}\n\n')
    assert tracker.error is not None
    assert tracker.error.message.startswith("?xxx")
    assert len(tracker.error.message.encode()) == 2000


# --- usage (P12) ---


@pytest.mark.parametrize("choices", [{"choices": []}, {"choices": None}, {}])
@pytest.mark.parametrize("spaced", [False, True])
def test_p12_usage_without_choices(choices: Any, spaced: Any) -> None:
    raw = event({**choices, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}, spaced=spaced)
    tracker, passed = run(text("a") + STOP + raw + DONE)
    assert tracker.usage == Usage(7, 3)
    assert (tracker.events, tracker.complete, passed) == (2, True, len(text("a") + STOP + raw + DONE))


def test_usage_in_other_names_and_places() -> None:
    assert run(event({"usage": {"input_tokens": 1, "output_tokens": 2}}))[0].usage == Usage(1, 2)
    assert run(text("a", usage=None) + text("b", usage={"prompt_tokens": 1}))[0].usage == Usage(1, None)
    continuous = [text("a", usage={"prompt_tokens": 5, "completion_tokens": n}) for n in (1, 2, 3)]
    assert run(b"".join(continuous))[0].usage == Usage(5, 3)
    odd: Any
    for odd in ({}, [], "x", {"prompt_tokens": "7"}, {"prompt_tokens": True}, {"completion_tokens": -1}):
        assert run(text("a") + event({"choices": [], "usage": odd}))[0].usage is None


# --- odd events ---


@pytest.mark.parametrize(
    "raw", [b"data: hello\n\n", b"data: [1]\n\n", b'data: "x"\n\n', b"data: {\n\n", b"data: \n\n"]
)
def test_malformed_events_pass_are_noted_and_are_not_content(raw: Any) -> None:
    for before in (b"", text("a")):
        tracker, passed = run(before + raw)
        assert passed == len(before + raw)
        assert tracker.notes == ("malformed_event",)
        assert tracker.content is bool(before)
        assert not tracker.complete


def test_j4_what_orjson_refuses_is_still_read() -> None:
    """J4: NaN and -Infinity in logprobs; a lone surrogate; half a character as raw bytes."""
    for content in (b'"a","logprobs":[NaN,-Infinity]', b'"\\ud83d"', b'"\xf0\x9f"'):
        tracker, passed = run(b'data: {"choices":[{"index":0,"delta":{"content":' + content + b"}}]}\n\n")
        assert (tracker.content, tracker.notes) == (True, ())
        assert passed > 0


def test_hostile_nesting_is_malformed_and_no_crash() -> None:
    for raw in (b"[" * 100_000, b'{"a":' * 100_000, b'{"choices":' + b"[" * 100_000):
        assert run(b"data: " + raw + b"\n\n")[0].malformed == 1


def test_p8_data_over_several_lines() -> None:
    tracker, _ = run(b'data: {"choices":\ndata: [{"index":0,"delta":{"content":\ndata: "a"}}]}\n\n')
    assert (tracker.content, tracker.malformed) == (True, 0)


def test_p13_tool_call_deltas_with_null_ids_pass_as_they_came() -> None:
    stream = b"".join(
        chunk({"tool_calls": [{"index": 0, "id": name, "function": {"arguments": "{"}}]})
        for name in ("x", None, None)
    )
    assert through([stream])[1] == stream


# --- splits ---

STREAMS = [
    ROLE + text("日本") + text("😀 error [DONE]") + chunk({}, "stop") + USAGE + DONE,
    b": hi\n\n"
    + ROLE
    + text("a", spaced=True)
    + b": ping\n\n"
    + chunk({}, "length", spaced=True)
    + DONE
    + DONE,
    ROLE + text("a") + text("b") + event({"error": {"message": "m", "code": 503}}) + text("c") + DONE,
    ROLE + event({"object": "error", "message": "m", "code": 429}) + DONE,
    text("a") + text("b", index=1) + chunk({}, "stop", 1) + chunk({}, "stop", 0),
]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("number", range(len(STREAMS)))
def test_p2_p3_the_state_does_not_depend_on_the_split(number: Any, line_end: bytes) -> None:
    stream = STREAMS[number].replace(b"\n", line_end)
    choices = 2 if number == len(STREAMS) - 1 else 1
    whole, passed = through([stream], choices)
    assert stream.startswith(passed)
    for place in range(len(stream)):
        tracker, out = through([stream[:place], stream[place:]], choices)
        assert (state(tracker), out) == (state(whole), passed)
    tracker, out = through([stream[at : at + 1] for at in range(len(stream))], choices)
    assert (state(tracker), out) == (state(whole), passed)


PARTS = st.sampled_from(
    [
        ROLE,
        STOP,
        DONE,
        USAGE,
        text("a"),
        text("an error"),
        text("a", spaced=True),
        text("a", usage=None),
        text("b", index=1),
        chunk({}, "stop", 1),
        chunk({"content": "x"}, "length", spaced=True),
        event({"choices": []}),
        b": c\n\n",
        b"id: 1\n\n",
        event({"error": {"message": "m"}}),
        b"event: error\ndata: x\n\n",
    ]
)


@given(st.lists(PARTS, max_size=12), st.integers(1, 2), st.data())
@settings(max_examples=300, deadline=None)
def test_blocks_are_read_as_their_events_one_by_one(parts: Any, choices: Any, data: Any) -> None:
    stream = b"".join(parts)
    single, passed = through(parts, choices)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    edges = [0, *cuts, len(stream)]
    tracker, out = through([stream[a:b] for a, b in pairwise(edges)], choices)
    assert state(tracker)[:-3] == state(single)[:-3]
    assert state(tracker)[-1] == state(single)[-1]
    # Comments behind a dropped event pass only if they come in a block of their own.
    assert b"".join(raw for raw in split_events(out) if not raw.startswith(b":")) == b"".join(
        raw for raw in split_events(passed) if not raw.startswith(b":")
    )


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_it_raise(block: bytes) -> None:
    for before in (b"", text("a")):
        tracker, _ = run(before)
        assert 0 <= tracker.feed(block) <= len(block)


def test_events_are_counted_in_any_block() -> None:
    for pieces in ([ROLE + text("a") * 50], [ROLE, *[text("a")] * 50], [ROLE + text("a", spaced=True) * 50]):
        assert through(pieces)[0].events == 51


# --- plain answers ---


def test_plain_answers() -> None:
    answer = {
        "choices": [{"message": {"content": "error"}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    result = plain_result(json.dumps(answer).encode())
    assert (result.error, result.usage) == (None, Usage(1, 2))
    result = plain_result(b'{"error":{"message":"m","code":503}}')
    assert (result.error, result.usage) == (InBandError("m", None, 503, 503), None)
    assert plain_result(b'{"object":"error","message":"m"}').error == InBandError("m")
    nested = {"choices": [{"usage": {"prompt_tokens": 7}}], "usage": {"prompt_tokens": 1}}
    assert plain_result(json.dumps(nested).encode()).usage == Usage(1, None)
    assert plain_result(b'{"choices":[],"usage":null}').usage is None
    for body in (b"", b"hello error", b"[1]", b'"error"', b"\xff\xfeerror", b"[" * 100_000 + b'"error"'):
        assert plain_result(body).error is None
        assert plain_result(body).usage is None


def test_usage_of_a_large_plain_answer_is_found_without_parsing_it() -> None:
    numbers = ",".join(["0.123456"] * 20_000)
    usage = '"usage" : {"prompt_tokens": 9, "details": {"cached": 1}, "completion_tokens": 4}'
    for body in (f'{{"data":[{numbers}],{usage}}}', f'{{{usage},"data":[{numbers}]}}'):
        assert plain_result(body.encode()).usage == Usage(9, 4)
    assert plain_result(f'{{"data":[{numbers}]}}'.encode()).usage is None
    error = ' {"error" : {"message": "m", "code": 500, "trace": "' + "x" * 100_000 + '"}}'
    assert plain_result(error.encode()).error == InBandError("m", None, 500, 500)
