"""Rules over more than one value: each with the place that it blames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferencemesh.config import ConfigError, from_document
from inferencemesh.config.load import read

HASH = "c775e7b757ede630cd0aa1113bd102661ab38829ca52a6422ab782862f268646"
A = {"name": "a", "url": "http://h:1", "slots": 4}
B = {"name": "b", "url": "http://h:2", "slots": 4}


def refusals(**sections: Any) -> list[str]:
    document = {"backends": [A, B], **sections}
    try:
        from_document(document)
    except ConfigError as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"backends": []}, "backends: needs at least one backend"),
        (
            {"admission": {"fairness": {"strict": True, "floor": 0.4}}},
            "admission.fairness.floor: leaves the most urgent class less than the others; with 3 classes write at "
            "most 0.333",
        ),
        ({"backends": [A, A]}, "backends[1].name: there is another backend `a`"),
        ({"backends": [{**A, "name": "-a"}]}, "backends[0].name: is also the name of a model"),
        ({"backends": [{**A, "name": "a b"}]}, "backends[0].name: must be 1 to 64 letters"),
        ({"backends": [{**A, "name": "a" * 65}]}, "backends[0].name: must be 1 to 64"),
        ({"backends": [{**A, "engine": "openai", "slots": "auto"}]}, "backends[0].slots: needs a number"),
        ({"backends": [{**A, "tls": {"verify": False}}]}, "backends[0].tls: has no use with an http:// URL"),
        (
            {"backends": [{**A, "url": "https://h", "tls": {"verify": False, "ca": "x"}}]},
            "backends[0].tls.ca: has no use with `verify: false`",
        ),
        ({"models": [{"name": "m", "backends": []}]}, "models[0].backends: needs at least one"),
        (
            {"models": [{"name": "m", "backends": ["c"]}]},
            "models[0].backends[0]: there is no backend `c`; there are a, b",
        ),
        ({"models": [{"name": "m", "backends": ["a", "a"]}]}, "models[0].backends[1]: `a` is named twice"),
        ({"models": [{"name": "/m", "backends": ["a"]}]}, "models[0].name: must be 1 to 128"),
        ({"models": [{"name": "m" * 129, "backends": ["a"]}]}, "models[0].name: must be 1 to 128"),
        (
            {"models": [{"name": "m", "backends": ["a"]}, {"name": "m", "backends": ["b"]}]},
            "models[1].name: `m` is already the name of models[0]",
        ),
        (
            {
                "models": [
                    {"name": "m", "backends": ["a"], "aliases": ["x"]},
                    {"name": "x", "backends": ["b"]},
                ]
            },
            "models[1].name: `x` is already an alias of `m`",
        ),
        (
            {"models": [{"name": "m", "backends": ["a"], "aliases": ["m"]}]},
            "models[0].aliases[0]: `m` is already the name",
        ),
        (
            {"models": [{"name": "m", "backends": ["a"], "queue": {"max_waiting_total": 1}}]},
            "models[0].queue.max_waiting_total: holds over all models",
        ),
        (
            {"models": [{"name": "m", "backends": ["a"], "retries": {"budget": 0.5}}]},
            "models[0].retries.budget: holds over all models; write it under `retries`",
        ),
        (
            {"admin": {"host": "0.0.0.0"}},
            "admin.token: is required because admin.host 0.0.0.0 is not loopback",
        ),
        ({"admin": {"host": "gateway"}}, "admin.token: is required"),
        ({"admin": {"port": 8080}}, "admin.port: is the port of `server` too (8080)"),
        ({"server": {"host": "::", "port": 8081}}, "admin.port: is the port of `server` too"),
        ({"server": {"host": "localhost", "port": 8081}}, "admin.port: is the port of `server` too"),
        ({"tenants": [{"name": "t"}, {"name": "t"}]}, "tenants[1].name: there is another tenant `t`"),
        (
            {"tenants": [{"name": "t", "class": "hihg"}]},
            "tenants[0].class: there is no class `hihg`; did you mean `high`?",
        ),
        (
            {
                "tenants": [
                    {"name": "t", "keys": [{"sha256": HASH}]},
                    {"name": "u", "keys": [{"sha256": HASH}]},
                ]
            },
            "tenants[1].keys[0].sha256: is already a key of the tenant `t`",
        ),
        (
            {"tenants": [{"name": "t", "keys": [{"sha256": HASH}, {"sha256": HASH}]}]},
            "tenants[0].keys[1].sha256: is already a key of the tenant `t`",
        ),
        (
            {"tenants": [{"name": "anonymous", "keys": [{"sha256": HASH}]}]},
            "tenants[0].keys: the tenant `anonymous` is that of callers without a key",
        ),
        ({"anonymous": "deny"}, "anonymous: `deny` without `tenants` leaves nobody"),
        ({"classes": []}, "classes: needs at least one class"),
        ({"classes": [{"name": "x"}, {"name": "x"}]}, "classes[1].name: there is another class `x`"),
        (
            {"classes": [{"name": "x", "offset": 5}, {"name": "y", "offset": "4s"}]},
            "classes[1].offset: is less than that of `x` before it",
        ),
        (
            {"coordination": {"partition": {"index": 2, "of": 2}}},
            "coordination.partition.index: must be less than `of` (2)",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(sections: dict[str, Any], says: str):
    (found,) = refusals(**sections)
    assert found.startswith(says)


@pytest.mark.parametrize(
    "sections",
    [
        {"admin": {"host": "0.0.0.0", "token": "x"}},
        {"admin": {"host": "::1"}},
        {"admin": {"host": "localhost"}},
        {"server": {"port": 0}, "admin": {"port": 0}},
        {"server": {"host": "10.0.0.1", "port": 8081}},
        {"server": {"host": "0.0.0.0"}},
        {"models": [{"name": "org/model:7b@q4", "backends": ["a"]}, {"name": "m2", "backends": ["a", "b"]}]},
        {"models": [{"name": "-".join(["m"] * 50), "backends": ["a"], "aliases": ["x", "y"]}]},
        {"backends": [{**A, "url": "https://h", "tls": {"verify": False}}]},
        {"backends": [{**A, "slots": "auto"}]},
        {"backends": [{**A, "name": "-a"}], "models": [{"name": "m", "backends": ["-a"]}]},
        {"tenants": [{"name": "anonymous", "weight": 3}], "anonymous": "allow"},
        {"classes": [{"name": "only"}]},
        {"classes": [{"name": "x", "offset": 5}, {"name": "y", "offset": 5}]},
    ],
)
def test_what_does_not_contradict_itself_loads(sections: dict[str, Any]):
    assert refusals(**sections) == []


def test_what_is_merely_odd_is_a_warning_with_its_place(tmp_path: Path):
    (tmp_path / "m").write_text("""\
server: {limits: {buffered_bytes: 1MiB}}
backends:
  - {name: a, url: "http://h:1", slots: 4}
  - {name: b, url: "http://h:1", slots: auto}
models: [{name: m, backends: [a], aliases: [n]}]
tenants: [{name: t, models: [n, "x*"]}]
""")
    assert [warning.render("m") for warning in read(tmp_path / "m").warnings] == [
        "m:1:35: server.limits.buffered_bytes: is less than `body_bytes`: larger bodies can never be read",
        "m:4:20: backends[1].url: is also the URL of `a`: the server may get the slots of both at once",
        "m:4:41: backends[1].slots: `auto` is asked for at start, which fails if the engine reports none; "
        "a number is sure",
        "m:4:12: backends[1].name: no model uses the backend `b`",
        "m:6:18: tenants[0].name: nobody can be the tenant `t`: it has no key",
        "m:6:33: tenants[0].models[1]: `x*` matches no model",
    ]


def test_reserves_that_leave_a_model_nothing_for_others_are_a_warning(tmp_path: Path):
    """They are over all backends, and one model has only some of them."""

    def warnings(models: str, others: str) -> list[str]:
        (tmp_path / "m").write_text(f"""\
backends:
  - {{name: a, url: "http://h:1", slots: 4}}
  - {{name: b, url: "http://h:2", slots: 4}}
models: [{{name: large, backends: [a, b]}}, {{name: small, backends: [b]}}]
anonymous: deny
tenants:
  - {{name: t, reserved: 4, models: [{models}], keys: [{{sha256: "{HASH}"}}]}}
  - {{name: u, {others} keys: [{{sha256: "{HASH[::-1]}"}}]}}
""")
        return [warning.render("m") for warning in read(tmp_path / "m").warnings]

    assert warnings('"*"', "") == [
        "m:7:25: tenants[0].reserved: makes 4 reserved slots of those who may use the model `small`, which has 4: "
        "while they wait for it nothing is left for others; reserve fewer, or give it more slots"
    ]
    assert warnings('"large"', "") == [], "it may not use the small one"
    assert warnings('"*"', 'models: ["large"],') == [], "nobody else may use it"
