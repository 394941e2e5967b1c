from __future__ import annotations

import json
from typing import Any

import pytest

from inferencemesh.sim.generate import Answer, pieces
from inferencemesh.sim.request import parse_chat
from inferencemesh.sim.script import SPLIT_AUTO, Script


def answer(script: str = "", seed: int = 0, **fields: Any) -> Answer:
    messages = [{"role": "user", "content": f"hello [[sim {script}]]"}]
    body = json.dumps({"model": "demo", "messages": messages, **fields}).encode()
    return Answer(parse_chat(body, {"demo": None}, Script()), seed)


def events(block: bytes, end: bytes = b"\n\n") -> list[Any]:
    raw = block.split(end)
    assert raw.pop() == b""
    return [json.loads(event.removeprefix(b"data: ")) for event in raw]


def whole_stream(made: Answer) -> bytes:
    steps = b"".join(made.step(token) for token in range(made.tokens))
    return made.role() + steps + made.finish() + made.usage() + made.done()


def test_the_same_seed_and_body_make_the_same_bytes() -> None:
    assert whole_stream(answer("tokens=40", seed=7)) == whole_stream(answer("tokens=40", seed=7))
    assert answer("tokens=40", seed=7).plain() == answer("tokens=40", seed=7).plain()


def test_another_seed_or_body_makes_another_answer() -> None:
    texts = {
        answer("tokens=40", seed=7).text(0),
        answer("tokens=40", seed=8).text(0),
        answer("tokens=40", seed=7, user="x").text(0),
    }
    assert len(texts) == 3
    assert answer(seed=7).id != answer(seed=8).id
    assert answer(seed=7).created != answer(seed=8).created


def test_a_stream_adds_up_to_the_plain_answer() -> None:
    made = answer("tokens=30", n=2)
    content = {0: "", 1: ""}
    for token in range(30):
        for event in events(made.step(token)):
            (choice,) = event["choices"]
            assert choice["finish_reason"] is None
            content[choice["index"]] += choice["delta"]["content"]
    plain = json.loads(made.plain())
    assert {c["index"]: c["message"]["content"] for c in plain["choices"]} == content
    assert content[0] != content[1]
    assert plain["usage"] == {"prompt_tokens": 6, "completion_tokens": 60, "total_tokens": 66}
    assert len(content[0].split(" ")) == 30


def test_every_answer_has_characters_of_several_bytes() -> None:
    for seed in range(50):
        assert not answer("tokens=4", seed=seed).text(0).isascii()


def test_the_first_chunk_is_a_role_and_the_last_a_reason() -> None:
    made = answer(n=2)
    assert [event["choices"][0] for event in events(made.role())] == [
        {"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        for i in (0, 1)
    ]
    assert [event["choices"][0] for event in events(made.finish())] == [
        {"index": i, "delta": {}, "logprobs": None, "finish_reason": "stop"} for i in (0, 1)
    ]
    assert made.done() == b"data: [DONE]\n\n"


def test_max_tokens_bounds_the_answer() -> None:
    short = answer("tokens=30", max_tokens=4)
    assert (short.tokens, short.finish_reason) == (4, "length")
    enough = answer("tokens=30", max_tokens=30)
    assert (enough.tokens, enough.finish_reason) == (30, "stop")


def test_usage_comes_when_asked_for() -> None:
    assert answer(stream=True).usage() == b""
    (event,) = events(answer("tokens=3", stream=True, stream_options={"include_usage": True}).usage())
    assert event["choices"] == []
    assert event["usage"]["completion_tokens"] == 3


def test_nofinish_and_nodone_leave_them_out() -> None:
    made = answer("nofinish nodone")
    assert made.finish() == made.done() == b""
    assert json.loads(made.plain())["choices"][0]["finish_reason"] is None


@pytest.mark.parametrize("size", [1, 200, 1000, 1024 * 1024])
def test_bytes_pads_each_content_event_to_the_size(size: int) -> None:
    bare = len(answer().step(0))
    made = answer(f"bytes={size}")
    for token in range(3):
        event = made.step(token)
        assert len(event) == size if size > bare else len(event) >= bare - 20
        json.loads(event.removeprefix(b"data: "))


def test_crlf_ends_every_line_and_nothing_else_changes() -> None:
    made = answer("crlf tokens=5")
    block = whole_stream(made)
    assert block.count(b"\n") == block.count(b"\r\n")
    assert len(events(block.removesuffix(made.done()), b"\r\n\r\n")) == 7


def test_tokens_are_due_without_drift() -> None:
    made = answer("first=100ms interval=20ms")
    assert [made.due_s(token) for token in (0, 1, 1000)] == pytest.approx([0.1, 0.12, 20.1])


def test_jitter_is_a_fixed_draw_for_each_token() -> None:
    one, two = answer("interval=20ms jitter=10ms"), answer("interval=20ms jitter=10ms")
    late = [one.due_s(token) - token * 0.02 for token in range(200)]
    assert late == [two.due_s(token) - token * 0.02 for token in range(200)]
    assert all(0 <= by <= 0.0101 for by in late)
    assert max(late) - min(late) > 0.008


def test_the_error_event_is_followed_by_the_marker() -> None:
    error, end = answer("error=first error_code=503").error().split(b"\n\n", 1)
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 503
    assert end == b"data: [DONE]\n\n"
    assert answer("error=first nodone").error().count(b"data:") == 1


@pytest.mark.parametrize("split", [1, 3, SPLIT_AUTO])
def test_pieces_add_up_and_cut_inside_characters(split: int) -> None:
    data = "data: naïve 🚀 x\n\n".encode()
    cut = list(pieces(data, split))
    assert b"".join(cut) == data
    assert all(cut)
    assert any(piece[0] & 0xC0 == 0x80 for piece in cut)
    assert 1 < len(cut) <= (8 if split == SPLIT_AUTO else len(data))
    assert list(pieces(b"", split)) == []
