from __future__ import annotations

from typing import Any

import pytest

from inferencemesh.admin.state import StateExtras, build_state, public_url
from tests.admin.fakes import EXTRAS
from tests.telemetry.facts import snapshot

AT = 1_790_000_100.0


def full() -> dict[str, Any]:
    return build_state(snapshot(), at=AT, ready=True, degraded=["backend gpu-b is down"], extras=EXTRAS)


def test_every_key_of_the_interface_is_there():
    state = full()
    assert {"at", "ready", "degraded", "scope", "backends", "models", "tenants", "totals"} <= set(state)
    assert (state["at"], state["ready"], state["scope"]) == (AT, True, "process")
    assert state["degraded"] == ["backend gpu-b is down"]
    for backend in state["backends"]:
        assert {"name", "url", "engine", "up", "cordoned", "breaker", "slots"} <= set(backend)
        assert {"capacity", "free", "running", "draining"} <= set(backend["slots"])
    for model in state["models"]:
        assert {"total", "oldest_s", "by_tenant"} <= set(model["waiting"])
    for tenant in state["tenants"]:
        assert {"name", "running", "waiting", "service"} <= set(tenant)
    wanted = {"accepted", "completed", "failed", "cancelled", "expired", "refused", "running", "waiting"}
    assert wanted <= set(state["totals"])


def test_the_numbers_add_up():
    state = full()
    totals = state["totals"]
    terms = ("waiting", "running", "completed", "failed", "cancelled", "expired")
    assert totals["accepted"] == sum(totals[term] for term in terms)
    held = 0
    for backend in state["backends"]:
        slots = backend["slots"]
        held += slots["running"] + slots["draining"]
        assert slots["free"] == max(0, slots["capacity"] - slots["running"] - slots["draining"])
    assert totals["grants"] == totals["settled"] + held
    for model in state["models"]:
        assert model["waiting"]["total"] == sum(model["waiting"]["by_tenant"].values())
    assert totals["waiting"] == sum(model["waiting"]["total"] for model in state["models"])
    assert totals["waiting"] == sum(tenant["waiting"] for tenant in state["tenants"])


def test_what_the_runtime_knows_stands_beside_it():
    state = full()
    gpu_a, gpu_b = state["backends"]
    assert (gpu_a["engine"], gpu_a["models"], gpu_a["slots"]["believed"]) == ("vllm", ["llama-3"], 6)
    assert gpu_b["url"] == "http://[::1]:8001"
    line = state["models"][0]
    assert line["waiting"]["limit"] == 16
    assert line["backends"] == ["gpu-a", "gpu-b"]
    assert line["estimate"] == {"service_s": 4.2, "wait_s": 2.1}
    acme = state["tenants"][0]
    assert (acme["weight"], acme["max_running"], acme["max_waiting"], acme["draining"]) == (2.0, 4, None, 1)
    assert state["uptime_s"] == 100.0
    assert state["rates"] == {"completed": 1.235}
    assert state["limits"] == {"max_waiting_total": 10_000}
    assert state["connections"] == 9
    assert state["simulator"] is False


def test_nothing_but_the_snapshot_is_needed():
    state = build_state(
        snapshot(), at=AT, ready=False, degraded=[], extras=StateExtras(simulator=True, scope="host")
    )
    assert state["scope"] == "host"
    assert state["simulator"] is True
    assert state["backends"][0]["url"] == ""
    assert "uptime_s" not in state
    assert build_state(snapshot(), at=AT, ready=False, degraded=[])["ready"] is False


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@10.0.0.1:8000/v1?key=hidden#x", "http://10.0.0.1:8000/v1"),
        ("https://gpu.example", "https://gpu.example"),
        ("http://[fe80::1]:80/", "http://[fe80::1]:80/"),
        ("http://gpu:port", ""),
        ("", ""),
    ],
)
def test_a_backends_url_is_shown_without_its_secrets(url: str, shown: str):
    assert public_url(url) == shown
