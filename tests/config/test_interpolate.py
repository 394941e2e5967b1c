from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferencemesh.config.interpolate import expand
from inferencemesh.config.yamlmap import Document, read_yaml

ENV = {"NAME": "value", "EMPTY": "", "TRICK": "${NAME}"}


def expanded(text: str, base: Path = Path()) -> Document:
    document = read_yaml(text.encode(), "f")
    expand(document, ENV, base)
    return document


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${NAME}", "value"),
        ("http://${NAME}:${PORT:-80}/", "http://value:80/"),
        ("${MISSING:-}", None),
        ('"${MISSING:-}"', ""),
        ("${EMPTY}", None),
        ("${EMPTY:-x}", "x"),
        ("${MISSING:-a:-b}", "a:-b"),
        ("$$", "$"),
        ("$${NAME}", "${NAME}"),
        ("a$b$", "a$b$"),
        ("${TRICK}", "${NAME}"),  # what a variable holds is not looked into
        ("'${NAME}'", "value"),
    ],
)
def test_references_to_the_environment(written: str, value: object):
    document = expanded(f"a: {written}\n")
    assert document.problems == []
    assert document.data == {"a": value}


def test_keys_are_not_touched():
    assert expanded("${NAME}: 1").data == {"${NAME}": 1}


@pytest.mark.parametrize(
    "written", ["${", "${NAME", "${}", "${1A}", "${NAME-x}", "${A:-${NAME}}", "${NA ME}", "${NÄME}"]
)
def test_a_malformed_reference_is_an_error(written: str):
    (problem,) = expanded(f"\n- '{written}'\n").problems
    assert (problem.path, problem.line, problem.column) == ("[0]", 2, 3)
    assert "$$" in problem.message


def test_a_missing_variable_is_an_error_with_its_line():
    document = expanded("a: 1\nb: [x, '${MISSING} ${OTHER}']\n")
    assert [problem.render("f") for problem in document.problems] == [
        "f:2:8: b[1]: the environment variable MISSING is not set; set it, or write `${MISSING:-default}`",
        "f:2:8: b[1]: the environment variable OTHER is not set; set it, or write `${OTHER:-default}`",
    ]


def test_a_value_from_a_file_is_relative_to_the_configuration(tmp_path: Path):
    (tmp_path / "value").write_bytes(b"secret ${NAME} \r\n\n")
    document = expanded("a: {file: '${NAME}'}\nb: {file: value, other: 1}", tmp_path)
    assert document.data == {"a": "secret ${NAME} ", "b": {"file": "value", "other": 1}}
    document = expanded(f"a: {{file: {tmp_path}/value}}")
    assert document.data == {"a": "secret ${NAME} "}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nope", "No such file"),
        (".", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("fifo", "not a regular file"),
        ("big", "larger than 64KiB"),
        ("binary", "not UTF-8"),
        ("a\\0b", "not a file name"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_and_blocks_nothing(tmp_path: Path, name: str, says: str):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "big").write_bytes(b"x" * (64 * 1024 + 1))
    (tmp_path / "binary").write_bytes(b"\xff")
    document = expanded(f'a:\n  b: {{file: "{name}"}}', tmp_path)
    (problem,) = document.problems
    assert (problem.path, problem.line, problem.column) == ("a.b", 2, 13)
    assert says in problem.message
