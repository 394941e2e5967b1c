from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from inferencemesh.config import ConfigError, Mesh, from_document
from inferencemesh.core.errors import MeshError
from inferencemesh.core.metered import SlotSeconds, Tokens
from inferencemesh.core.model import (
    BackendSpec,
    BreakerSpec,
    ClassSpec,
    Limits,
    ModelSpec,
    RetrySpec,
    TenantSpec,
)
from inferencemesh.runtime.settings import settings_of

A = {"name": "a", "url": "http://h:1", "slots": 4}
HASH = "c775e7b757ede630cd0aa1113bd102661ab38829ca52a6422ab782862f268646"  # of 1234567890


def mesh(**sections: Any) -> Mesh:
    return from_document({"backends": [A], **sections})


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError):
        mesh().server.port = 1


def test_models_are_found_by_name_and_by_alias():
    found = mesh(models=[{"name": "m", "backends": ["a"], "aliases": ["n", "o/p"]}])
    assert found.model_named("m") is found.model_named("o/p") is found.models[0]
    assert found.model_named("a") is None
    assert mesh().model_named("a") is not None


def test_a_model_overrides_single_keys_and_inherits_the_rest():
    found = mesh(
        timeouts={"idle": "7s", "total": "90s"},
        admission={"queue": {"max_waiting": 3, "timeout": 2}},
        retries={"on": [503]},
        stream={"keepalive": 0, "prefetch": "off"},
        models=[
            {
                "name": "m",
                "backends": ["a"],
                "timeouts": {"idle": "600ms"},
                "queue": {"max_waiting": 0},
                "retries": {"on": []},
                "stream": {"prefetch": "first_content"},  # equal to the default, and still an override
            },
            {"name": "n", "backends": ["a"]},
        ],
    )
    one, other = found.models
    assert (found.timeouts_for(one).idle, found.timeouts_for(one).total) == (0.6, 90.0)
    assert (found.queue_for(one).max_waiting, found.queue_for(one).timeout) == (0, 2.0)
    assert found.retries_for(one).on == ()
    assert (found.stream_for(one).prefetch, found.stream_for(one).keepalive) == ("first_content", 0.0)
    assert found.timeouts_for(other) == found.timeouts
    assert found.queue_for(other) == found.admission.queue
    assert found.retries_for(other).on == (503,)
    assert found.stream_for(other).prefetch == "off"


def test_what_admission_is_told_of_classes_and_fairness():
    found = from_document(
        {
            "backends": [{"name": "a", "url": "http://h:1", "slots": 4}],
            "models": [{"name": "m", "backends": ["a"], "queue": {"timeout": "7s", "max_waiting": 3}}],
            "classes": [
                {"name": "fast", "max_running": 3},
                {"name": "batch", "offset": "60s", "queue": {"max_waiting": 50}, "timeouts": {"total": "1h"}},
            ],
            "tenants": [{"name": "t", "class": "fast", "reserved": 2}],
            "admission": {"fairness": {"unit": "tokens", "strict": True, "floor": 0.1}},
        }
    )
    core = found.to_core()
    (model,) = core.models
    assert (model.max_waiting, model.queue_timeout_s) == (3, 7.0)
    ((name, own),) = model.by_class
    assert (name, own.max_waiting, own.queue_timeout_s) == ("batch", 50, 7.0)
    assert core.tenants[0].reserved == 2
    assert core.fairness.limit_s == 3600.0
    assert core.options["floor"] == 0.1
    assert core.options["classes"] == (ClassSpec("fast", 3), ClassSpec("batch"))
    assert isinstance(core.options["charge"], Tokens)
    settings = settings_of(found)["m"]
    assert (settings.total_s, settings.of_class("batch").total_s) == (600.0, 3600.0)
    assert settings.of_class("fast") is settings


def test_what_admission_is_told():
    found = from_document(
        {
            "backends": [{**A, "weight": 2}, {"name": "b", "url": "http://h:2"}],
            "models": [
                {"name": "m", "backends": ["a", "b"], "routing": "round_robin"},
                {"name": "n", "backends": ["b"], "queue": {"max_waiting": 0, "max_waiting_per_tenant": 1}},
            ],
            "admission": {
                "max_running": 5,
                "queue": {
                    "max_waiting_total": 9,
                    "max_waiting_bytes": "1MiB",
                    "timeout": 3,
                    "wait_budget": 4,
                    "refuse_hopeless": False,
                },
            },
            "tenants": [{"name": "t", "weight": 3, "max_running": 2, "max_waiting": 0}],
            "anonymous": "allow",
            "retries": {"attempts": 4, "budget": 0.5},
        }
    )
    core = found.to_core({"b": 6})
    assert core.args == (
        (BackendSpec("a", 4, 2.0), BackendSpec("b", 6, 1.0)),
        (
            ModelSpec("m", ("a", "b"), None, 4.0, None, 3.0, refuse_hopeless=False, routing="round_robin"),
            ModelSpec("n", ("b",), 0, 4.0, 1, 3.0, refuse_hopeless=False),
        ),
        (TenantSpec("t", 3.0, 2, 0), TenantSpec("anonymous")),
        Limits(9, 1 << 20, 5),
    )
    options = core.options
    assert isinstance(options.pop("charge"), SlotSeconds)
    assert options.pop("classes") == (ClassSpec("high"), ClassSpec("normal"), ClassSpec("low"))
    assert options == {"breaker": BreakerSpec(), "retry": RetrySpec(4, 0.5), "floor": None}
    with pytest.raises(ValueError, match="b: `slots: auto`"):
        found.to_core()


@pytest.mark.parametrize(
    ("sections", "names"),
    [
        ({}, ["anonymous"]),
        ({"tenants": [{"name": "t"}]}, ["t"]),
        ({"tenants": [{"name": "t"}], "anonymous": "allow"}, ["t", "anonymous"]),
        ({"tenants": [{"name": "t"}, {"name": "anonymous"}], "anonymous": "allow"}, ["t", "anonymous"]),
    ],
)
def test_who_is_served(sections: dict[str, Any], names: list[str]):
    assert [tenant.name for tenant in mesh(**sections).served_tenants] == names


def test_the_anonymous_tenant_has_the_class_normal_or_the_first():
    assert mesh().served_tenants[0].class_name == "normal"
    assert mesh(classes=[{"name": "x"}, {"name": "y"}]).served_tenants[0].class_name == "x"


def test_the_key_ring_of_a_configuration():
    ring = mesh(
        models=[{"name": "m", "backends": ["a"], "aliases": ["fast"]}, {"name": "n", "backends": ["a"]}],
        tenants=[
            {
                "name": "t",
                "keys": [{"sha256": HASH, "expires": "2027-12-31"}],
                "models": ["fa*"],
                "class": "low",
            }
        ],
    ).key_ring()
    last_s = datetime(2027, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    tenant = ring.identify([b"1234567890"], last_s)
    assert (tenant.name, tenant.class_name) == ("t", "low")
    assert [tenant.may_use(name) for name in ("m", "fast", "n")] == [True, True, False]
    assert ring.class_of(tenant, None) == ("low", 30.0)
    with pytest.raises(MeshError, match="expired"):
        ring.identify([b"1234567890"], last_s + 1)
    with pytest.raises(MeshError, match="a key is needed"):
        ring.identify([], 0)
    assert mesh().key_ring().identify([b"x", b"y"], 0).name == "anonymous"


def test_backends_without_a_file():
    found = Mesh.from_backends(
        ["http://127.0.0.1:8001", "http://[::1]:8001/v1", "http://127.0.0.1:8001/b"], slots=3
    )
    assert [(backend.name, backend.url, backend.slots) for backend in found.backends] == [
        ("127.0.0.1-8001", "http://127.0.0.1:8001", 3),
        ("1-8001", "http://[::1]:8001", 3),
        ("127.0.0.1-8001-2", "http://127.0.0.1:8001/b", 3),
    ]
    assert [model.name for model in found.models] == ["127.0.0.1-8001", "1-8001", "127.0.0.1-8001-2"]
    found = Mesh.from_backends(
        ["http://a:1", "http://b:2"],
        slots=1,
        models={"m": ["http://a:1", "http://b:2"], "n": ["http://b:2"]},
        server={"port": 9000},
    )
    assert {model.name: model.backends for model in found.models} == {"m": ("a-1", "b-2"), "n": ("b-2",)}
    assert found.server.port == 9000


@pytest.mark.parametrize("url", ["h:1", "", "http://[", "ftp://h"])
def test_a_url_that_is_none_is_refused(url: str):
    with pytest.raises(ConfigError, match=r"backends\[0\].url"):
        Mesh.from_backends([url], slots=1)
