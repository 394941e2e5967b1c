from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from inferencemesh.cli.main import LazyGroup, main

EXAMPLE = Path(__file__).parents[2] / "examples" / "mesh.yaml"
GOOD = "backends: [{name: a, url: 'http://h:1', slots: 4, api_key: hunter2}]\n"
BAD = "server: {prot: 1}\nbackends: []\n"


def run(*args: str, stdin: str | bytes = "", env: dict[str, str | None] | None = None):
    return CliRunner().invoke(main, ["config", *args], input=stdin, env=env)


def test_a_good_configuration_is_summed_up(tmp_path: Path):
    (tmp_path / "m.yaml").write_text(GOOD)
    result = run("check", "-c", str(tmp_path / "m.yaml"))
    assert result.exit_code == 0
    assert result.stdout == (
        f"{tmp_path}/m.yaml: OK: 1 backend (a), 1 model (a), 1 tenant (anonymous); "
        "server 127.0.0.1:8080, admin 127.0.0.1:8081\n"
    )


def test_the_default_file_is_mesh_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert run("check").stderr.startswith("mesh.yaml: there is no such file")
    (tmp_path / "mesh.yaml").write_text(GOOD)
    assert run("check").exit_code == 0


def test_the_example_is_good():
    assert run("check", "-c", str(EXAMPLE)).exit_code == 0


@pytest.mark.parametrize("command", ["check", "show"])
def test_every_problem_is_printed_and_the_exit_code_is_2(command: str):
    result = run(command, "-c", "-", stdin=BAD)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "-:1:10: server.prot: unknown key; did you mean `port`?",
        "-:2:11: backends: needs at least one backend",
        "-: 2 problems",
    ]


def test_problems_for_programs():
    result = run("check", "-c", "-", "--json", stdin=BAD)
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert (answer["ok"], len(answer["problems"])) == (False, 2)
    assert answer["problems"][0] == {
        "line": 1,
        "column": 10,
        "path": "server.prot",
        "message": "unknown key; did you mean `port`?",
    }
    result = run("check", "-c", "-", "--json", stdin=GOOD.replace("4", "auto"))
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["ok"], [warning["path"] for warning in answer["warnings"]]) == (
        True,
        ["backends[0].slots"],
    )


def test_warnings_go_to_standard_error():
    result = run("check", "-c", "-", stdin=GOOD.replace("4", "auto"))
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: -:1:48: backends[0].slots: ")


def test_the_schema_is_json():
    schema = json.loads(run("schema").stdout)
    assert schema["properties"]["backends"]


def test_the_effective_configuration_has_no_secrets(tmp_path: Path):
    result = run("show", "-c", "-", stdin=GOOD + "server:\n  port: ${P}\n", env={"P": "9"})
    assert result.exit_code == 0
    shown = yaml.safe_load(result.stdout)
    assert shown["server"]["port"] == 9
    assert shown["backends"][0]["api_key"] == "********"
    assert "hunter2" not in result.output


def test_a_key_is_hashed_from_standard_input():
    expected = "c775e7b757ede630cd0aa1113bd102661ab38829ca52a6422ab782862f268646\n"
    for stdin in ("1234567890", "1234567890\n", "1234567890\r\n"):
        result = run("hash-key", stdin=stdin)
        assert (result.exit_code, result.stdout) == (0, expected)
        assert "short" in result.stderr
    assert run("hash-key", stdin="x" * 32).stderr == ""


@pytest.mark.parametrize("stdin", ["", "\n", "a b", "a\nb\n", "schlüssel", "x" * 9000])
def test_what_no_request_could_carry_is_refused(stdin: str):
    result = run("hash-key", stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("inferencemesh config hash-key: ")


def test_a_key_is_never_an_argument():
    assert run("hash-key", "hunter2").exit_code == 2


def test_subcommands_are_listed_and_imported_when_they_are_there():
    group = LazyGroup(
        "x", modules={"config": "inferencemesh.cli.config", "nowhere": "inferencemesh.cli.nowhere"}
    )
    result = CliRunner().invoke(group, ["--help"])
    assert "config" in result.stdout
    assert "nowhere" not in result.stdout
    assert CliRunner().invoke(group, ["nowhere"]).exit_code == 2


def test_help_and_version_import_no_subcommand():
    code = (
        "import sys; from inferencemesh.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'pydantic', 'yaml', 'asyncio', 'inferencemesh.cli.config'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "inferencemesh" in result.stdout
