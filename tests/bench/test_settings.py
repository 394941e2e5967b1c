from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import measure, peers, settings
from bench.load import parse
from inferencemesh.config.load import load


def test_the_mesh_takes_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "mesh.yaml"
    file.write_text(json.dumps(settings.mesh(8080, 8081, 9000)))
    mesh = load(str(file), overrides={})
    assert mesh.backends[0].slots == settings.SLOTS
    assert len(mesh.tenants) == len(settings.KEYS)


def test_no_placeholder_is_left_in_the_others_settings(tmp_path: Path) -> None:
    nginx = settings.nginx(8080, 9000, tmp_path)
    assert "{port}" not in nginx
    assert "listen 127.0.0.1:8080" in nginx
    assert nginx.count("{") == nginx.count("}")
    haproxy = settings.haproxy(8080, 9000)
    assert "option http-no-delay" in haproxy
    assert "127.0.0.1:9000" in haproxy
    assert "{line}" not in haproxy
    envoy = json.dumps(settings.envoy(8080, 9000, tmp_path))
    assert '"port_value": 8080' in envoy
    assert '"port_value": 9000' in envoy


@pytest.mark.parametrize("name", list(measure.SCENARIOS))
def test_the_load_generator_takes_every_scenario(name: str) -> None:
    bench = measure.Bench(
        folder=Path("unused"),
        peers=[peers.Direct],
        scenarios=[measure.SCENARIOS[name]],
        rounds=1,
        seconds=1.0,
        quick=True,
        cpus=measure.Cpus(None, None, None),
    )
    spec, cpu = parse([*bench.load_options(measure.SCENARIOS[name]), "--port", "1", "--watch", "gateway=1,2"])
    assert spec.watch == {"gateway": [1, 2]}
    assert cpu is None
    assert spec.mode == measure.SCENARIOS[name].mode
    assert max(spec.connections, *spec.levels, 0) <= settings.SLOTS


def test_a_free_port_is_one() -> None:
    assert 1024 < peers.free_port() < 65536
