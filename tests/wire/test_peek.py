"""Looking into bodies: exact spans, refused repeats, bad input (contract A13, G1; J1, J2, J4, H9)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferencemesh.core.errors import MeshError
from inferencemesh.wire.peek import (
    MAX_CONTAINERS,
    MAX_SEQUENCES,
    Peek,
    model_span,
    peek_chat,
    peek_completion,
    peek_plain,
    replace_model,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def body(**asked: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **asked}).encode()


def refused(raw: bytes, look: Any = peek_chat) -> MeshError:
    with pytest.raises(MeshError) as caught:
        look(raw)
    assert caught.value.http_status == 400
    assert caught.value.message.endswith(".")
    return caught.value


def test_a_usual_body() -> None:
    raw = body(stream=True, n=2, max_tokens=64, stream_options={"include_usage": True})
    peek = peek_chat(raw)
    assert peek == Peek("m", True, 2, 64, True, 2)
    assert raw[slice(*model_span(raw))] == b'"m"'


def test_defaults() -> None:
    peek = peek_chat(body())
    assert (peek.stream, peek.width, peek.choices, peek.max_tokens, peek.include_usage) == (
        False,
        1,
        1,
        None,
        False,
    )
    nulls = body(stream=None, n=None, best_of=None, max_tokens=None, stream_options=None)
    assert peek_chat(nulls).width == 1


# --- what is refused (G1) ---


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b"{'model': 1}", "not valid JSON"),
        (b'{"model":"m"} x', "not valid JSON"),
        (b'{"model":"m",}', "not valid JSON"),
        (b"\xef\xbb\xbf" + body(), "byte order mark"),  # P7, in a request
        (body().decode().encode("utf-16"), "UTF-8"),  # J2
        (body().decode().encode("utf-16-le"), "UTF-8"),  # J2
        (body().decode().encode("utf-32-be"), "UTF-8"),  # J2
        (b"\xff\xfe", "UTF-8"),  # J1
        ('{"model":"é"}'.encode("latin-1"), "not valid JSON"),  # J1
        (b'{"model":"\xed\xa0\x80"}', "not valid JSON"),
        (b'{"model":"m","temperature":NaN}', "NaN"),  # J4
        (b'{"model":"m","temperature":-Infinity}', "NaN"),  # J4
        (b'{"model":"m","temperature":1e999}', "not valid JSON"),
        (b'{"model":"\\ud800"}', "not valid JSON"),
        (b'{"model":"\x01"}', "not valid JSON"),
        (b"[" * 100_000, "too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "too deeply"),
        (b'{"model":' * 100_000, "too deeply"),
    ],
)
def test_j1_j2_j4_what_is_not_json_is_refused_with_a_hint(raw: Any, hint: Any) -> None:
    error = refused(raw)
    assert error.code == "invalid_json"
    assert hint in error.message


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"x"', b"null", b"true"])
def test_the_body_must_be_an_object(raw: Any) -> None:
    assert refused(raw).code == "invalid_request"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 1}, "model"),
        ({"model": ["m"]}, "model"),
        ({"model": "x" * 2000}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"stream": "true"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 1.0}, "n"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"n": [1]}, "n"),
        ({"n": MAX_SEQUENCES + 1}, "n"),
        ({"n": 10**30}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
    ],
)
def test_values_that_we_decide_on_must_make_sense(asked: Any, param: Any) -> None:
    error = refused(body(**asked))
    assert (error.code, error.param) == ("invalid_request", param)
    assert f"`{param}`" in error.message


def test_a_body_without_model_or_messages() -> None:
    assert refused(b'{"messages":[{}]}').param == "model"
    assert refused(b'{"model":"m"}').param == "messages"
    assert refused(b"{}").code == "invalid_request"


@pytest.mark.parametrize("key", ["model", "stream", "n", "best_of", "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("escaped", ["none", "first", "second", "capitals"])
def test_a_key_that_we_decide_on_may_stand_once(key: Any, escaped: Any) -> None:
    """Also in another spelling, and with the same value: which one the backend takes is not ours to guess."""
    value = {"model": '"m"', "stream": "true"}.get(key, "1")
    odd = "".join(f"\\u{ord(letter):04x}" for letter in key)
    odd = odd.upper().replace("\\U", "\\u") if escaped == "capitals" else odd
    first = odd if escaped == "first" else key
    second = odd if escaped in ("second", "capitals") else key
    rest = '"messages":[1]' + ("" if key == "model" else ',"model":"m"')
    once = f'{{"{first}":{value},{rest}}}'.encode()
    assert peek_chat(once).model == "m"
    error = refused(f'{{"{first}":{value},{rest},"{second}" : {value}}}'.encode())
    assert (error.code, error.param) == ("invalid_request", key)


def test_other_keys_may_stand_twice() -> None:
    twice = b'"stream_options":{},"top_p":1,"top_p":1,"stream_options":{"include_usage":true}'
    raw = b'{"model":"m","messages":[1],' + twice + b"}"
    assert peek_chat(raw).include_usage


def test_nested_keys_are_not_repeats() -> None:
    tools = [{"function": {"parameters": {"properties": {"model": {"n": 1}, "n": {"stream": 2}}}}}]
    raw = body(tools=tools, stream=True, n=3, metadata={"model": "other"})
    peek = peek_chat(raw)
    assert (peek.model, peek.stream, peek.width) == ("m", True, 3)
    assert raw[slice(*model_span(raw))] == b'"m"'


# --- width (A13) and tokens ---


def test_a13_width_is_the_number_of_sequences() -> None:
    assert (peek_chat(body(n=4)).width, peek_chat(body(n=4)).choices) == (4, 4)
    assert (peek_chat(body(n=2, best_of=5)).width, peek_chat(body(n=2, best_of=5)).choices) == (5, 2)


@pytest.mark.parametrize(
    ("prompt", "n", "best_of", "width", "choices"),
    [
        ("hi", None, None, 1, 1),
        (["a", "b", "c"], None, None, 3, 3),
        ([1, 2, 3], None, None, 1, 1),
        ([[1, 2], [3]], 2, None, 4, 4),
        (["a", "b"], 2, 3, 6, 4),
    ],
)
def test_a13_completions_take_a_slot_for_each_prompt(
    prompt: Any, n: Any, best_of: Any, width: Any, choices: Any
) -> None:
    peek = peek_completion(json.dumps({"prompt": prompt, "model": "m", "n": n, "best_of": best_of}).encode())
    assert (peek.width, peek.choices) == (width, choices)


@pytest.mark.parametrize("prompt", [None, [], 5, {}, True])
def test_a_completion_needs_a_prompt(prompt: Any) -> None:
    assert refused(json.dumps({"model": "m", "prompt": prompt}).encode(), peek_completion).param == "prompt"


def test_more_sequences_than_anybody_has_slots_for() -> None:
    error = refused(json.dumps({"model": "m", "prompt": ["x"] * 2000}).encode(), peek_completion)
    assert (error.code, error.param) == ("invalid_request", "prompt")


def test_prompt_embeds_stand_for_a_prompt() -> None:
    assert peek_completion(b'{"model":"m","prompt_embeds":"AA"}').width == 1


def test_plain_requests_have_width_one() -> None:
    peek = peek_plain(b'{"input":["a","b"],"model":"e","n":5}')
    assert (peek.model, peek.width, peek.choices) == ("e", 1, 1)
    assert refused(b'{"input":[],"model":"e","model":"f"}', peek_plain).param == "model"


@pytest.mark.parametrize(
    ("asked", "bound"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 0}, 0),
    ],
)
def test_max_tokens(asked: Any, bound: Any) -> None:
    assert peek_chat(body(**asked)).max_tokens == bound


# --- where the model stands ---

keys = st.sampled_from(
    ["model", "n", "stream", "key0", "key", 'a"model', "\\", 'x\\"model', "mo", "é", "model:"]
)
words = st.sampled_from(
    ['"model": "x"', '\\"model\\":', "{", "}]", '"', "model", "\\", "\\u006dodel", "日本", "😀", ""]
)
values = st.recursive(
    words | st.integers(-5, 5) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
styles = st.sampled_from(
    [{"separators": (",", ":")}, {}, {"indent": 1}, {"indent": "\t"}, {"separators": (" ,\r\n", "\t: ")}]
)


def spell(key: str, escaped: bool) -> str:
    return '"' + "".join(f"\\u{ord(c):04x}" for c in key) + '"' if escaped else json.dumps(key)


@given(
    st.lists(st.tuples(keys.filter(lambda key: key not in ("n", "stream", "model")), values), max_size=5),
    st.lists(st.sampled_from(["model", "n", "stream"]), max_size=3),
    words.filter(bool),
    styles,
    st.booleans(),
    st.data(),
)
@settings(max_examples=500, deadline=None)
def test_the_span_is_that_of_the_top_level_model(
    others: Any, decisive: Any, model: Any, style: Any, ascii_only: Any, data: Any
) -> None:
    given_values = {"model": model, "n": 1, "stream": True}
    members = [
        *others,
        ("messages", [{"model": 1}]),
        ("model", model),
        *((key, given_values[key]) for key in decisive),
    ]
    members = data.draw(st.permutations(members))
    colon = style.get("separators", (", ", ": "))[1]
    texts = [
        spell(key, data.draw(st.booleans()) if key in given_values else False)
        + colon
        + json.dumps(value, ensure_ascii=ascii_only, **style)
        for key, value in members
    ]
    raw = (" {" + ",\n ".join(texts) + "} ").encode()
    expected = json.loads(raw)
    named = [key for key, _ in members if key in given_values]
    if len(named) != len(set(named)):
        assert refused(raw).param in given_values
        return
    peek = peek_chat(raw)
    start, end = model_span(raw)
    assert json.loads(raw[start:end]) == peek.model == model
    changed = replace_model(raw, 'new "name" ü')
    assert json.loads(changed) == {**expected, "model": 'new "name" ü'}
    assert changed.startswith(raw[:start])
    assert changed.endswith(raw[end:])


@given(st.binary(max_size=80) | words.map(lambda word: ('{"model":' + word).encode()))
@settings(max_examples=300, deadline=None)
def test_no_bytes_raise_anything_but_our_error(raw: Any) -> None:
    for look in (peek_chat, peek_completion, peek_plain):
        with pytest.raises(MeshError):
            look(raw)


# --- size (H9) ---


def test_h9_a_picture_of_30_mb_passes_quickly() -> None:
    picture = "data:image/png;base64," + "QUJDRUZH" * 3_750_000
    part = {"type": "image_url", "image_url": {"url": picture}}
    for raw in (
        body(messages=[{"role": "user", "content": [part]}], n=2),
        body(messages=[{"role": "user", "content": [part, {"n": 1, "model": "x"}]}], n=2),
    ):
        begun = time.perf_counter()
        peek = peek_chat(raw)
        assert time.perf_counter() - begun < 5
        assert (peek.width, raw[slice(*model_span(raw))]) == (2, b'"m"')


@pytest.mark.parametrize(
    "filling",
    [
        b"[],",
        b'{"n":1},',
        b'{"model":"m"},',
        b"1,",
    ],
)
def test_bodies_that_unfold_are_answered_quickly(filling: Any) -> None:
    raw = b'{"model":"m","n":1,"messages":[' + filling * (12_000_000 // len(filling)) + b"1]}"
    begun = time.perf_counter()
    assert refused(raw).code == "invalid_request"
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize("filling", [b'"\\"n\\":",', b'"\\u006e",', b'"\\\\\\\\",', b'"n",', b'"model",'])
def test_strings_that_look_like_keys_cost_little(filling: bytes) -> None:
    raw = b'{"model":"m","n":1,"messages":[' + filling * (6_000_000 // len(filling)) + b"1]}"
    begun = time.perf_counter()
    assert peek_chat(raw).model == "m"
    assert raw[slice(*model_span(raw))] == b'"m"'
    assert time.perf_counter() - begun < 5


def test_many_nested_keys_are_told_apart_up_to_a_limit() -> None:
    few = b'{"messages":[' + b'{"model":1},' * 10_000 + b'1],"model":"m"}'
    assert peek_chat(few).model == "m"
    assert few[slice(*model_span(few))] == b'"m"'
    many = b'{"messages":[' + b'{"model":1},' * 30_000 + b'1],"model":"m"}'
    assert refused(many).param == "model"


def test_a_long_text_with_brackets_is_no_structure_problem() -> None:
    text = "if (a[i]) { f({}); }\n" * 20_000
    raw = body(messages=[{"role": "user", "content": text}])
    assert raw.count(b"{") + raw.count(b"[") < MAX_CONTAINERS < len(raw) * 2
    assert peek_chat(raw).model == "m"
