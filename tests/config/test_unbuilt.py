"""A value that asks for what is not built is refused with its line; one that asks for nothing loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferencemesh.config import ConfigError, from_document, load
from inferencemesh.config.outline import entries
from inferencemesh.config.unbuilt import UNBUILT

BASE = """\
backends: [{name: a, url: "http://h:1", slots: 4%s}]
models: [{name: m, backends: [a]%s}, {name: m2, backends: [a]}]
tenants: [{name: t%s}]
classes: [{name: normal%s}]
"""
# For each row of the table: a value that is refused, one or more that load.
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "server.workers": ("2", ("1",)),
    "server.watch_config": ("true", ("false",)),
    "server.trust_forwarded": ("[10.0.0.1]", ("[]",)),
    "server.cors.allow_origins": ("['*']", ("[]",)),
    "server.tls.cert": ("a.pem", ("null",)),
    "server.tls.key": ("a.pem", ("null",)),
    "server.tls.client_ca": ("a.pem", ("null",)),
    "backends[].engine": ("vllm", ("auto", "openai", "sim")),
    "backends[].tokens": ("5", ("null",)),
    "models[].routing": ("prefix", ("least_busy", "round_robin")),
    "models[].fallbacks": ("[m2]", ("[]",)),
    "models[].stream.usage": ("inject", ("observe",)),
    "tenants[].rate.requests_per_minute": ("1", ("null",)),
    "tenants[].rate.tokens_per_minute": ("1", ("null",)),
    "admission.adaptive.enabled": ("true", ("false",)),
    "stream.usage": ("inject", ("observe",)),
    "coordination.mode": ("redis", ("none",)),
    "telemetry.otlp.endpoint": ("http://h:4318", ("null",)),
    "telemetry.tenant_histograms": ("true", ("false",)),
    "telemetry.buckets": ("{a: [1]}", ("{}",)),
}


def document(path: str, value: str) -> str:
    top, _, rest = path.partition(".")
    if not top.endswith("[]"):
        inner = value
        for key in reversed(rest.split(".")):
            inner = f"{{{key}: {inner}}}"
        return BASE % ("", "", "", "") + f"{top}: {inner}\n"
    head, _, tail = rest.partition(".")
    added = f", {head}: {{{tail}: {value}}}" if tail else f", {head}: {value}"
    return BASE % tuple(
        added if top == f"{section}[]" else "" for section in ("backends", "models", "tenants", "classes")
    )


def test_there_is_a_case_for_every_row_and_a_key_for_every_case():
    assert set(CASES) == {row.path for row in UNBUILT}
    keys = {entry.path for entry in entries()}
    assert {path for path in CASES if path not in keys} == {"models[].stream.usage"}  # an override


@pytest.mark.parametrize("path", CASES)
def test_what_is_not_built_is_refused_with_key_line_and_what_to_write_instead(tmp_path: Path, path: str):
    text = document(path, CASES[path][0])
    (tmp_path / "m").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "m")
    (problem,) = caught.value.problems
    assert problem.path == path.replace("[]", "[0]")
    key = path.rpartition(".")[2]
    assert problem.line is not None
    assert f"{key}: " in text.splitlines()[problem.line - 1]
    assert "this release does not do yet; write" in problem.message


@pytest.mark.parametrize("path", CASES)
def test_values_equal_to_what_the_build_does_load(tmp_path: Path, path: str):
    for value in CASES[path][1]:
        (tmp_path / "m").write_text(document(path, value))
        assert load(tmp_path / "m").backends


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("models: [{name: m, backends: [a], timeouts: {send: 1s}}]", "models[0].timeouts.send"),
        ("models: [{name: m, backends: [a], timeouts: {cleanup: 1s}}]", "models[0].timeouts.cleanup"),
        ("models: [{name: m, backends: [a], timeouts: {connect: 3s}}]", "models[0].timeouts.connect"),
        ("models: [{name: m, backends: [a], retries: {attempts: 5}}]", "models[0].retries.attempts"),
        ("anonymous: allow", "backends[1].breaker"),
    ],
)
def test_what_has_one_value_over_all_in_this_release(tmp_path: Path, text: str, path: str):
    (tmp_path / "m").write_text(
        "backends: [{name: a, url: 'http://h:1', slots: 1}, "
        f"{{name: b, url: 'http://h:2', slots: 1{', breaker: {ratio: 1}' if 'breaker' in path else ''}}}]\n{text}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "m")
    assert [problem.path for problem in caught.value.problems] == [path]


def test_the_same_value_may_be_repeated(tmp_path: Path):
    (tmp_path / "m").write_text(
        "backends:\n"
        "- {name: a, url: 'http://h:1', slots: 1, breaker: {ratio: 0.5}}\n"
        "- {name: b, url: 'http://h:2', slots: 1}\n"
        "models: [{name: m, backends: [a], timeouts: {send: 30s, idle: 1s, connect: 1s}, retries: {attempts: 2}}]\n"
    )
    assert load(tmp_path / "m").models[0].timeouts


def test_confirm_needs_an_engine_that_can_be_asked() -> None:
    def document(engine: str) -> dict[str, Any]:
        backend = {"name": "a", "url": "http://127.0.0.1:1", "slots": 1, "engine": engine}
        return {"backends": [{**backend, "drain": {"policy": "confirm"}}]}

    assert from_document(document("sim")).backends[0].drain.policy == "confirm"
    with pytest.raises(ConfigError, match="cannot be asked whether it has stopped"):
        from_document(document("openai"))
