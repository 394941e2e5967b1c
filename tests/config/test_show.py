from __future__ import annotations

from pathlib import Path

from inferencemesh.config import load
from inferencemesh.config.show import as_yaml

TEXT = """\
server: {port: 0, shutdown_grace: 90, limits: {body_bytes: 1000}}
admin: {token: hunter2}
backends:
  - {name: "1e5", url: "http://h:1", slots: 4, api_key: hunter2, weight: 1e-6}
  - {name: "0x10", url: "http://h:2", slots: auto, health: {path: /a$$b}}
models:
  - {name: m, backends: ["1e5"], timeouts: {idle: 250ms}, queue: {max_waiting: 0}, upstream_name: "no"}
  - {name: n, backends: ["0x10"], retries: {on: [500]}, stream: {max_event: 64KiB}}
tenants:
  - {name: t, keys: [{sha256: c775e7b757ede630cd0aa1113bd102661ab38829ca52a6422ab782862f268646, expires: 2027-12-31}]}
coordination: {url: "redis://:hunter2@h:6379/0"}
"""


def test_what_is_shown_loads_again_as_the_same(tmp_path: Path):
    (tmp_path / "m").write_text(TEXT)
    mesh = load(tmp_path / "m", environ={})
    shown = as_yaml(mesh)
    (tmp_path / "n").write_text(shown)
    again = load(tmp_path / "n", environ={})
    assert as_yaml(again) == shown
    assert (again.server, again.tenants, again.classes) == (mesh.server, mesh.tenants, mesh.classes)
    assert [backend.name for backend in again.backends] == ["1e5", "0x10"]
    assert again.backends[1] == mesh.backends[1]
    assert [again.timeouts_for(model) for model in again.models] == [
        mesh.timeouts_for(model) for model in mesh.models
    ]
    assert again.to_core({"0x10": 1}) == mesh.to_core({"0x10": 1})


def test_secrets_are_masked(tmp_path: Path):
    (tmp_path / "m").write_text(TEXT)
    shown = as_yaml(load(tmp_path / "m", environ={}))
    assert "hunter2" not in shown
    assert shown.count("********") == 3


def test_values_are_shown_as_people_write_them(tmp_path: Path):
    (tmp_path / "m").write_text(TEXT)
    shown = as_yaml(load(tmp_path / "m", environ={}))
    for text in (
        "shutdown_grace: 90s",
        "idle: 250ms",
        "max_event: 64KiB",
        "header_bytes: 32KiB",
        "overload_status: 503",
    ):
        assert text in shown
