"""Errors have a place, and one run shows all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferencemesh.config import ConfigError, from_document, load
from inferencemesh.config.load import read

EXAMPLE = Path(__file__).parents[2] / "examples" / "mesh.yaml"
BACKENDS = "backends:\n  - {name: a, url: 'http://h:1', slots: 4}\n"


def problems(text: str, tmp_path: Path, environ: dict[str, str] | None = None) -> list[str]:
    file = tmp_path / "mesh.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environ=environ or {})
    return [problem.render("mesh.yaml") for problem in caught.value.problems]


def test_the_example_loads_and_holds_the_defaults():
    loaded = read(EXAMPLE, environ={})
    mesh = loaded.mesh
    defaults = from_document({"backends": [{"name": "gpu-a", "url": "http://127.0.0.1:8001"}]})
    for key in ("server", "admin", "backends", "admission", "timeouts", "retries", "stream", "anonymous", "classes",
                "coordination", "telemetry"):  # fmt: skip
        assert getattr(mesh, key) == getattr(defaults, key), key
    assert [problem.path for problem in loaded.warnings] == ["backends[0].slots"]


def test_a_minimal_file(tmp_path: Path):
    (tmp_path / "m.yaml").write_text(BACKENDS)
    mesh = load(tmp_path / "m.yaml")
    assert [(model.name, model.backends) for model in mesh.models] == [("a", ("a",))]
    assert mesh.server.port == 8080
    assert mesh.timeouts.total == 600.0
    assert mesh.server.limits.body_bytes == 32 << 20


def test_sections_that_are_left_empty_have_their_defaults(tmp_path: Path):
    (tmp_path / "m.yaml").write_text(
        BACKENDS + "server:\n  limits:\ntenants:\nclasses:\nmodels:\ntelemetry: {buckets: }\n"
    )
    assert load(tmp_path / "m.yaml") == from_document(
        {"backends": [{"name": "a", "url": "http://h:1", "slots": 4}]}
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("server: {prot: 1}", "4:10: server.prot: unknown key; did you mean `port`?"),
        ("sever: {}", "4:1: sever: unknown key; did you mean `server`?"),
        ("server: {max_waiting: 1}", "4:10: server.max_waiting: unknown key here; there is `admission.queue."),
        ("admin: {zzz: 1}", "4:9: admin.zzz: unknown key; known here: host, port, token"),
        ("server: {port: 65536}", "4:16: server.port: must be at most 65535, not 65536"),
        ("server: 5", "4:9: server: must be a mapping of keys to values"),
        ("server: []", "4:9: server: must be a mapping of keys to values"),
        ("tenants: {}", "4:10: tenants: must be a list"),
        ("models: [x]", "4:10: models[0]: must be a mapping of keys to values"),
        ("models: [{backends: [a]}]", "4:10: models[0].name: is required"),
        ("retries: {on: connect}", "4:15: retries.on: must be a list"),
        ("timeouts: {idle: null}", "4:18: timeouts.idle: must be a duration such as 10s, 250ms or 1m "
         "(a plain number counts seconds)"),
        ("telemetry: {buckets: {x: 1}}", "4:26: telemetry.buckets.x: must be a list"),
        ("admin: {port: 1, port: 2}", "4:18: admin.port: is written twice; the first is in line 4"),
        ('"a\\nb": 1', "4:1: 'a\\nb': unknown key; known here: "),
    ],
)  # fmt: skip
def test_each_problem_has_line_column_and_path(tmp_path: Path, line: str, problem: str):
    (found,) = problems(BACKENDS.replace("\n", "\n\n", 1) + line + "\n", tmp_path)
    assert found.startswith(f"mesh.yaml:{problem}")


def test_all_problems_are_shown_at_once_in_the_order_of_the_file(tmp_path: Path):
    text = """\
server: {port: x, workers: 2}
backends:
  - {name: a, url: "http://h:1", slots: 4, api_key: "${MISSING}"}
  - {name: a, url: "http://h:2", slots: 0}
models:
  - {name: m, backends: [a, b], nmae: x}
  - {name: m, backends: [a]}
"""
    assert [line.split(": ")[0] + " " + line.split(": ")[1] for line in problems(text, tmp_path)] == [
        "mesh.yaml:1:16 server.port",
        "mesh.yaml:1:28 server.workers",
        "mesh.yaml:3:53 backends[0].api_key",
        "mesh.yaml:4:12 backends[1].name",
        "mesh.yaml:4:41 backends[1].slots",
        "mesh.yaml:6:29 models[0].backends[1]",
        "mesh.yaml:6:33 models[0].nmae",
        "mesh.yaml:7:12 models[1].name",
    ]


def test_a_problem_hides_only_its_own_consequences(tmp_path: Path):
    (found,) = problems("backends: {file: nope}", tmp_path)
    assert "nope" in found
    found = problems("backends: [{name: a, url: '${X}'}]\nmodels: [{name: 1, backends: [q]}]", tmp_path)  # type: ignore[assignment]
    assert len(found) == 2


def test_the_value_of_a_secret_is_in_no_message(tmp_path: Path):
    text = BACKENDS + "admin: {token: '${T}'}\ntenants: [{name: t, keys: [{sha256: '${T}'}]}]\n"
    assert "hunter 2" not in "\n".join(problems(text, tmp_path, {"T": "hunter 2"}))


@pytest.mark.parametrize(
    ("name", "says"),
    [("nope.yaml", "there is no such file"), ("", "is a directory"), ("no\0pe", "is not a file name")],
)
def test_a_file_that_is_not_there(tmp_path: Path, name: str, says: str):
    with pytest.raises(ConfigError, match=says):
        load(os.path.join(tmp_path, name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path):
    (tmp_path / "m").write_text(BACKENDS)
    (tmp_path / "m").chmod(0)
    with pytest.raises(ConfigError, match="Permission denied"):
        load(tmp_path / "m")


@pytest.mark.parametrize("text", ["", "---", "[]", "7", "text", "null"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str):
    (found,) = problems(text, tmp_path)
    assert "it needs at least `backends`" in found


def test_overrides_take_the_place_of_values_before_anything_is_checked(tmp_path: Path):
    (tmp_path / "m").write_text(BACKENDS + "server: {port: 99999}\n")
    mesh = load(tmp_path / "m", overrides={"server.port": 9000, "admin.port": 9001, "timeouts.idle": "3s"})
    assert (mesh.server.port, mesh.admin.port, mesh.timeouts.idle) == (9000, 9001, 3.0)
    with pytest.raises(ConfigError, match=r"admin\.port: is the port of `server` too"):
        load(tmp_path / "m", overrides={"server.port": 9000, "admin.port": 9000})


def test_secrets_and_numbers_come_from_the_environment_and_from_files(tmp_path: Path):
    (tmp_path / "key").write_text("sk-1\n")
    (tmp_path / "m").write_text(
        "server: {port: '${PORT}', expose_backend: '${EXPOSE}'}\nadmin:\n  token: ${TOKEN:-}\n"
        "timeouts:\n  idle: ${IDLE:-30s}\n"
        "backends: [{name: a, url: 'http://${HOST:-h}:1', slots: '${SLOTS}', api_key: {file: key}}]\n"
    )
    mesh = load(tmp_path / "m", environ={"PORT": "81", "EXPOSE": "true", "SLOTS": "6"})
    assert (mesh.server.port, mesh.server.expose_backend, mesh.admin.token) == (81, True, None)
    assert (mesh.timeouts.idle, mesh.backends[0].slots, mesh.backends[0].api_key) == (30.0, 6, "sk-1")
    assert "sk-1" not in repr(mesh)


def test_json_is_accepted(tmp_path: Path):
    (tmp_path / "m.json").write_text(
        '{\n\t"backends": [\n\t\t{"name": "a", "url": "http:\\/\\/h:1", "slots": 4}\n\t]\n}\n'
    )
    assert load(tmp_path / "m.json").backends[0].slots == 4


def test_values_of_a_program_are_checked_like_a_file():
    with pytest.raises(ConfigError) as caught:
        from_document({"backends": [{"name": "a", "url": "http://h:1", "slots": 0}], "x": 1})
    assert str(caught.value).splitlines() == [
        "backends[0].slots: must be at least 1, not 0, or `auto`",
        "x: unknown key; known here: server, admin, backends, models, admission, timeouts, retries, stream, tenants, "
        "anonymous, classes, coordination, telemetry",
    ]


LINES = EXAMPLE.read_text().splitlines()
SCRAPS = [
    "",
    "null",
    "[]",
    "{}",
    "-1",
    "auto",
    "x",
    "[1, x]",
    "{a: b}",
    "${X}",
    "{file: x}",
    "99999999999",
    "*a",
    "\t",
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(LINES) - 1), st.sampled_from(SCRAPS)), min_size=1, max_size=3))
def test_a_damaged_file_loads_or_says_why(tmp_path: Path, damage: list[tuple[int, str]]):
    lines = list(LINES)
    for number, scrap in damage:
        key, colon, _ = lines[number].partition(":")
        lines[number] = f"{key}{colon} {scrap}"
    (tmp_path / "m").write_text("\n".join(lines))
    try:
        found = load(tmp_path / "m", environ={}).backends
    except ConfigError as error:
        found = error.problems  # type: ignore[assignment]
    assert found
