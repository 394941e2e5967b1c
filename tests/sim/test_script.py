from __future__ import annotations

import dataclasses

import pytest

from inferencemesh.sim.script import (
    KEYS,
    SPLIT_AUTO,
    Fault,
    Script,
    ScriptError,
    find_script,
    parse_script,
)

EACH_KEY: dict[str, dict[str, object]] = {
    "tokens=50": {"tokens": 50},
    "first=100ms": {"first_s": 0.1},
    "interval=1.5s": {"interval_s": 1.5},
    "jitter=0": {"jitter_s": 0.0},
    "bytes=1MiB": {"event_bytes": 1024 * 1024},
    "bytes=300": {"event_bytes": 300},
    "status=503": {"fault": Fault("status", "headers"), "status": 503},
    "full": {"fault": Fault("full", "headers")},
    "hang=headers": {"fault": Fault("hang", "headers")},
    "hang=first": {"fault": Fault("hang", "first")},
    "cut=after:3": {"fault": Fault("cut", "after", 3)},
    "drop=after:0": {"fault": Fault("drop", "after", 0)},
    "end": {"fault": Fault("end", "first")},
    "end=finish": {"fault": Fault("end", "finish")},
    "error=after:16": {"fault": Fault("error", "after", 16)},
    "error_code=503": {"error_code": 503},
    "full retry_after=2": {"fault": Fault("full", "headers"), "retry_after": "2"},
    "full times=2": {"fault": Fault("full", "headers"), "times": 2},
    "nodone": {"done": False},
    "nofinish": {"finish": False},
    "split": {"split": SPLIT_AUTO},
    "split=1": {"split": 1},
    "crlf": {"crlf": True},
    "comments": {"comments": True},
    "comments=50ms": {"comments_every_s": 0.05},
    "early_role": {"early_role": True},
    "linger=2s": {"linger_s": 2.0},
    "ignore_disconnect": {"ignore_disconnect": True},
}


@pytest.mark.parametrize("words", EACH_KEY)
def test_each_key_sets_its_fields_and_nothing_else(words: str) -> None:
    assert parse_script(words) == dataclasses.replace(Script(), **EACH_KEY[words])  # type: ignore[arg-type]


def test_every_key_is_tried_above() -> None:
    tried = {word.partition("=")[0] for words in EACH_KEY for word in words.split()}
    assert tried == set(KEYS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("token=5", "did you mean tokens"),
        ("zzz=5", "known: bytes, comments"),
        ("tokens", "whole number"),
        ("tokens=-1", "whole number"),
        ("tokens=٣", "whole number"),
        ("tokens=99999999", "1000000"),
        ("interval=20", "duration such as 20ms"),
        ("interval=20m", "duration such as 20ms"),
        ("linger=90000s", "at most 86400s"),
        ("bytes=1GB", "size up to 64MiB"),
        ("status=200", "from 400 to 599"),
        ("hang=after", "headers, first, after:N, finish"),
        ("hang=first:2", "headers, first, after:N, finish"),
        ("hang=after:x", "whole number"),
        ("hang", "headers, first, after:N, finish"),
        ("end=headers", "first, after:N, finish"),
        ("crlf=yes", "flag"),
        ("comments=0", "at least 1ms"),
        ("tokens=1 tokens=2", "twice"),
        ("cut=first hang=first", "cut or hang, not both"),
        ("hang=after:17", "would never come"),
        ("end=finish nofinish", "would never come"),
        ("times=2", "needs a fault"),
        ("retry_after=", "Retry-After"),
    ],
)
def test_a_bad_script_says_what_is_wrong(words: str, told: str) -> None:
    with pytest.raises(ScriptError, match=told):
        parse_script(words)


def test_a_script_keeps_what_it_does_not_name_of_its_base() -> None:
    base = parse_script("tokens=5 interval=20ms hang=after:5")
    assert parse_script("tokens=2", base) == dataclasses.replace(base, tokens=2)
    assert parse_script("cut=first", base).fault == Fault("cut", "first")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", None),
        ("[[simulate this]]", None),
        ("a [[sim tokens=5 crlf]] b", " tokens=5 crlf"),
        ("[[sim]]", ""),
        ("[[sim\ntokens=5]]", "\ntokens=5"),
    ],
)
def test_the_script_is_found_in_a_message(text: str, words: str | None) -> None:
    assert find_script(text) == words


@pytest.mark.parametrize("text", ["[[sim tokens=5", "[[sim", "[[sim a]] [[sim b]]", "[[sim tokens=5] ]"])
def test_a_block_left_open_or_given_twice_is_refused(text: str) -> None:
    with pytest.raises(ScriptError):
        find_script(text)
