from __future__ import annotations

import json
from typing import Any

import pytest

from inferencemesh.sim.request import RequestError, error_body, parse_chat
from inferencemesh.sim.script import Fault, Script, parse_script

MODELS = {"demo": None, "org/other": None}


def body(**fields: Any) -> bytes:
    document = {"model": "demo", "messages": [{"role": "user", "content": "hi there"}], **fields}
    return json.dumps({k: v for k, v in document.items() if v != "absent"}).encode()


def test_a_minimal_request() -> None:
    call = parse_chat(body(), MODELS, Script())
    assert (call.model, call.stream, call.choices, call.max_tokens, call.include_usage) == (
        "demo",
        False,
        1,
        None,
        False,
    )
    assert call.prompt_tokens == 5
    assert call.script == Script()


def test_all_fields_are_read() -> None:
    call = parse_chat(
        body(
            model="org/other",
            stream=True,
            n=3,
            max_tokens=9,
            max_completion_tokens=7,
            stream_options={"include_usage": True},
        ),
        MODELS,
        Script(),
    )
    assert (call.model, call.stream, call.choices, call.max_tokens, call.include_usage) == (
        "org/other",
        True,
        3,
        7,
        True,
    )


def test_the_script_is_that_of_the_last_user_message() -> None:
    messages = [
        {"role": "user", "content": "[[sim tokens=1]]"},
        {"role": "assistant", "content": None},
        {
            "role": "user",
            "content": [{"type": "text", "text": "now [[sim tokens=2]]"}, {"type": "image_url"}],
        },
        {"role": "assistant", "content": "[[sim tokens=3]]"},
    ]
    assert parse_chat(body(messages=messages), MODELS, Script()).script.tokens == 2


def test_the_request_without_a_script_follows_that_of_the_server() -> None:
    base = parse_script("tokens=4 hang=first")
    assert parse_chat(body(), MODELS, base).script == base
    messages = [{"role": "user", "content": "[[sim cut=first]]"}]
    script = parse_chat(body(messages=messages), MODELS, base).script
    assert (script.tokens, script.fault) == (4, Fault("cut", "first"))


@pytest.mark.parametrize(
    ("raw", "status", "told"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b'{"a": NaN}', 400, "not JSON"),
        (b'{"model": "\xff"}', 400, "not JSON"),
        (b"[]", 400, "JSON object"),
        (body(model="absent"), 400, "model must be"),
        (body(model="nope"), 404, "does not exist"),
        (body(messages=[]), 400, "messages must be"),
        (body(messages=["x"]), 400, "each message"),
        (body(messages=[{"role": "user", "content": 5}]), 400, "content must be"),
        (body(stream="yes"), 400, "stream must be"),
        (body(stream=True, stream_options=3), 400, "stream_options must be"),
        (body(stream_options={"include_usage": True}), 400, "only with stream"),
        (body(n=0), 400, "n must be"),
        (body(n=True), 400, "n must be"),
        (body(n=129), 400, "n must be"),
        (body(max_tokens=0), 400, "max_tokens must be"),
        (body(max_tokens=1.5), 400, "max_tokens must be"),
        (body(messages=[{"role": "user", "content": "[[sim tokns=1]]"}]), 400, "bad sim script: unknown key"),
        (body(messages=[{"role": "user", "content": "[[sim tokens=1000 bytes=1MB]]"}]), 400, "too long"),
    ],
)
def test_a_bad_request_says_what_is_wrong(raw: bytes, status: int, told: str) -> None:
    with pytest.raises(RequestError, match=told) as caught:
        parse_chat(raw, MODELS, Script())
    assert caught.value.status == status


def test_errors_have_the_shape_of_the_ecosystem() -> None:
    assert json.loads(error_body(503, "later")) == {
        "error": {"message": "later", "type": "ServiceUnavailableError", "param": None, "code": 503}
    }
