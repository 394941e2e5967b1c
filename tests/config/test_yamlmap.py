from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferencemesh.config import yamlmap
from inferencemesh.config.problems import ConfigError
from inferencemesh.config.yamlmap import Document, read_yaml


def read(text: str | bytes) -> Document:
    return read_yaml(text.encode() if isinstance(text, str) else text, "f.yaml")


def refusal(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


def test_values_and_keys_have_places():
    document = read("a:\n  b: [1, {c: x}]\n")
    assert document.data == {"a": {"b": [1, {"c": "x"}]}}
    assert document.keys["a", "b"] == (2, 3)
    assert document.values["a", "b", 1, "c"] == (2, 14)
    assert document.position(("a", "b", 1, "missing")) == (2, 10)
    assert document.position(("nowhere",)) == (1, 1)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("12:30", "12:30"),
        ("2027-12-31", "2027-12-31"),
        ("=", "="),
        ("1_000", "1_000"),
        ("010", 10),
        ("0x10", 16),
        ("0o17", 15),
        ("-7", -7),
        ("1e3", 1000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        (".inf", float("inf")),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'7'", "7"),
        ("!!str 7", "7"),
        ("!!int '7'", 7),
    ],
)
def test_scalars_are_those_of_yaml_1_2(written: str, value: object):
    assert read(f"a: {written}\n").data == {"a": value}


def test_every_json_text_is_read_as_json_reads_it():
    value = {"a": [1, -2.5, 1e10, True, None, "x\ty", "\U0001f600", "é/\\"], "b": {"c": {}}, "d": []}
    for text in (json.dumps(value), json.dumps(value, indent="\t"), json.dumps(value, ensure_ascii=False)):
        assert read(text).data == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_json_is_a_subset(value: dict[str, object]):
    assert read(json.dumps(value)).data == value


def test_half_a_character_is_an_error():
    document = read('{"a": "\\ud83d"}')
    assert [problem.path for problem in document.problems] == ["a"]


def test_a_key_that_is_written_twice_is_an_error_that_names_both_lines():
    document = read("a: 1\nb: 2\na: 3\n")
    assert [problem.render("f") for problem in document.problems] == [
        "f:3:1: a: is written twice; the first is in line 1"
    ]


def test_aliases_and_merge_keys_work():
    document = read("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\nd: {<<: [{y: 9}, *a]}\n")
    assert document.problems == []
    assert document.data == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 2},
        "d": {"x": 1, "y": 9},
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f.yaml: is empty"),
        ("# only a comment\n", "is empty"),
        ("a: [", "f.yaml:1:5: "),
        ("a: b\n\tc: d", "f.yaml:2:1: .*blanks, not tabs"),
        ("--- \na: 1\n---\nb: 2\n", "f.yaml:3:1: holds more than one document"),
        ("a: 1\nb: {c: ${NAME}}", "f.yaml:2:9: .*needs quotes"),
        ("a: *x", "f.yaml:1:4: found undefined alias 'x'"),
        ("a: &a [*a]", "is an alias of something around it"),
        ("a: &a {<<: *a}", "is an alias of something around it"),
        ("a: \x01", "f.yaml:1:4: holds a character"),
        ("[" * 100_000, "f.yaml:1:33: is nested too deeply"),
        ("{a: " * 100_000, "is nested too deeply"),
        (b"ok: 1\nname: caf\xe9\n", "f.yaml:2:10: is not UTF-8"),
        ("a: b".encode("utf-16"), "is not UTF-8"),
        (b"x" * (yamlmap.MAX_BYTES + 1), "larger than 2MiB"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_place(text: str | bytes, says: str):
    assert re.search(says, refusal(text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: !!python/object:os.system x", "tag"),
        ("a: !secret x", "tag"),
        ("a: !!set {x}", "tag"),
        ("a: !!binary aGk=", "tag"),
        ("? [a]\n: b", "a key must be text"),
        ('{"\\ud83d": 1}', "a key must be text"),
        ("a: !!int x", "is not a int"),
        ("a: {<<: 3}", "takes a mapping"),
    ],
)
def test_what_yaml_could_do_but_a_configuration_may_not(text: str, says: str):
    (problem,) = read(text).problems
    assert says in problem.message
    assert problem.line == 1


@pytest.mark.parametrize("merge", [False, True])
def test_a_bomb_of_aliases_is_stopped(merge: bool):
    lines = ["a0: &a0 {k: [x,x,x,x,x,x,x,x,x]}"]
    for i in range(1, 12):
        refs = ", ".join([f"*a{i - 1}"] * 9)
        lines.append(f"a{i}: &a{i} {{<<: [{refs}]}}" if merge else f"a{i}: &a{i} [{refs}]")
    began = time.monotonic()
    assert "aliases" in refusal("\n".join(lines))
    assert time.monotonic() - began < 20


def test_a_byte_order_mark_is_skipped():
    assert read(b"\xef\xbb\xbfa: 1").data == {"a": 1}
