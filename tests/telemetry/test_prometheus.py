from __future__ import annotations

from typing import Any

from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from inferencemesh.core.events import Drained, Retried, WaitEnded
from inferencemesh.telemetry.aggregate import Aggregate
from inferencemesh.telemetry.prometheus import MeshCollector, metrics_registry
from tests.telemetry.facts import ended, refused, snapshot

# The names and labels that the interface fixes, as far as they can be fed.
INTERFACE = {
    "requests_total": {"model", "tenant", "phase", "cause"},
    "rejections_total": {"model", "tenant", "code"},
    "cancellations_total": {"model", "tenant", "stage"},
    "admission_wait_seconds_count": {"model", "result"},
    "time_to_first_content_seconds_count": {"model"},
    "backend_first_content_seconds_count": {"backend"},
    "stream_duration_seconds_count": {"model"},
    "slots": {"backend", "state", "scope"},
    "draining_oldest_seconds": {"backend"},
    "drains_total": {"backend", "evidence"},
    "waiting": {"model", "tenant"},
    "running": {"model", "tenant"},
    "oldest_waiter_seconds": {"model"},
    "returns_total": {"model", "result"},
    "buffered_bytes": {"kind"},
    "retries_total": {"backend", "reason"},
    "backend_up": {"backend"},
    "breaker_state": {"backend"},
    "tokens_total": {"model", "tenant", "kind"},
    "telemetry_dropped_total": {"sink"},
    "build_info": {"version", "python"},
}


def collector(**options) -> tuple[Aggregate, MeshCollector]:
    fold = Aggregate({"llama-3", "embed"}, {"acme", "globex"})
    options = {
        "snapshot": snapshot,
        "running": lambda: {("llama-3", "acme"): 4, ("llama-3", "stranger"): 2},
        "buffered": lambda: {"bodies": 3072},
        "dropped": lambda: {"log": 7},
        **options,
    }
    return fold, MeshCollector(fold, **options)


def fill(fold: Aggregate) -> None:
    fold(ended())
    fold(ended(cause="client_gone", stage="after_content"))
    fold(refused())
    fold(WaitEnded("llama-3", "acme", 0.3, "granted"))
    fold(Retried("gpu-a", "full"))
    fold(Drained("gpu-a", "peer_closed", 0.2))


def parse_openmetrics(text: str) -> list[Metric]:
    read: Any = openmetrics.text_string_to_metric_families
    return list(read(text))


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name.removeprefix("inferencemesh_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def scrape(mesh: MeshCollector) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(generate_latest(metrics_registry(mesh, process=False)).decode())


def test_every_name_of_the_interface_is_there_with_its_labels():
    fold, mesh = collector()
    fill(fold)
    found: dict[str, set[str]] = {}
    for name, labels in scrape(mesh):
        found.setdefault(name, set()).update(label for label, _ in labels)
    assert {name: found.get(name) for name in INTERFACE} == INTERFACE


def test_gauges_are_those_of_one_snapshot_and_add_up():
    fold, mesh = collector()
    fill(fold)
    values = scrape(mesh)

    def slots(backend: str, state: str) -> float:
        return values["slots", (("backend", backend), ("scope", "process"), ("state", state))]

    for view in snapshot().backends:
        held = slots(view.name, "running") + slots(view.name, "draining")
        assert slots(view.name, "free") == max(0, view.capacity - held)
    assert values["slots_believed", (("backend", "gpu-a"),)] == 6
    assert values["backend_up", (("backend", "gpu-b"),)] == 0
    assert values["breaker_state", (("backend", "gpu-b"),)] == 2
    assert values["draining_oldest_seconds", (("backend", "gpu-a"),)] == 1.25
    assert values["oldest_waiter_seconds", (("model", "llama-3"),)] == 2.5
    assert values["waiting", (("model", "llama-3"), ("tenant", "acme"))] == 2
    assert values["running", (("model", "llama-3"), ("tenant", "other"))] == 2
    assert values["telemetry_dropped_total", (("sink", "log"),)] == 7


def test_where_there_was_traffic_an_empty_line_shows_a_zero():
    fold, mesh = collector()
    fold(ended(model="embed"))
    values = scrape(mesh)
    assert values["waiting", (("model", "embed"), ("tenant", "acme"))] == 0
    assert values["running", (("model", "embed"), ("tenant", "acme"))] == 0


def test_running_is_shown_by_tenant_when_nothing_tells_the_model():
    _, mesh = collector(running=None)
    assert scrape(mesh)["running", (("model", ""), ("tenant", "acme"))] == 4


def test_scope_labels_every_slot():
    _, mesh = collector(scope="host")
    scopes = {dict(labels)["scope"] for name, labels in scrape(mesh) if name == "slots"}
    assert scopes == {"host"}


def test_histograms_are_cumulative_and_end_in_inf():
    fold, mesh = collector()
    for wait in (0.001, 0.3, 700.0):
        fold(WaitEnded("llama-3", "acme", wait, "granted"))
    values = scrape(mesh)

    def bucket(edge: str) -> float:
        key = tuple(sorted({"le": edge, "model": "llama-3", "result": "granted"}.items()))
        return values["admission_wait_seconds_bucket", key]

    assert [bucket(edge) for edge in ("0.001", "0.25", "0.5", "600.0", "+Inf")] == [1, 1, 2, 2, 3]
    assert values["admission_wait_seconds_sum", (("model", "llama-3"), ("result", "granted"))] == 700.301


def test_both_text_formats_parse():
    fold, mesh = collector()
    fill(fold)
    registry = metrics_registry(mesh, process=False)
    encode, content_type = choose_encoder("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    families = {family.name for family in parse_openmetrics(encode(registry).decode())}
    assert {"inferencemesh_requests", "inferencemesh_slots"} <= families


def test_a_frozen_scrape_does_not_see_what_comes_later():
    fold, mesh = collector()
    fill(fold)
    registry = metrics_registry(mesh)
    frozen = registry.frozen()
    before = generate_latest(registry)
    fill(fold)
    fold(ended(model="embed"))
    assert b"process_" in before
    key = (
        "requests_total",
        tuple(sorted({"model": "llama-3", "tenant": "acme", "phase": "complete", "cause": "ok"}.items())),
    )
    assert samples(generate_latest(frozen).decode())[key] == 1
    assert scrape(mesh)[key] == 2


def test_names_with_quotes_and_newlines_are_escaped():
    fold = Aggregate({'a"b\n'}, {"acme"})
    fold(ended(model='a"b\n'))
    values = scrape(MeshCollector(fold))
    assert any(dict(labels).get("model") == 'a"b\n' for _, labels in values)
