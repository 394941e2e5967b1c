from __future__ import annotations

import pytest

from inferencemesh.core.events import BackendChanged, Drained, Retried, WaitEnded
from inferencemesh.core.outcome import Phase
from inferencemesh.telemetry.aggregate import HISTOGRAMS, Aggregate, Histogram
from inferencemesh.telemetry.recent import RecentRates
from tests.telemetry.facts import ended, refused


def aggregate(**options) -> Aggregate:
    return Aggregate({"llama-3", "embed"}, {"acme", "globex"}, **options)


def test_an_ended_request_counts_once_everywhere_it_belongs():
    fold = aggregate()
    fold(ended())
    fold(ended())
    assert fold.requests == {("llama-3", "acme", "complete", "ok"): 2}
    assert fold.tokens == {("llama-3", "acme", "input"): 24, ("llama-3", "acme", "output"): 96}
    assert fold.cancellations == {}
    assert fold.histograms["time_to_first_content_seconds"].series[("llama-3",)].total_s == pytest.approx(0.4)
    assert fold.histograms["backend_first_content_seconds"].series[("gpu-a",)].total_s == pytest.approx(0.36)
    assert sum(fold.histograms["stream_duration_seconds"].series[("llama-3",)].counts) == 2


def test_what_is_unknown_or_did_not_happen_is_not_counted_as_zero():
    fold = aggregate()
    fold(
        ended(
            phase=Phase.BEFORE_HEADERS,
            cause="client_gone",
            stage="waiting",
            backend=None,
            first_content_s=None,
            backend_first_content_s=None,
            tokens_in=None,
            tokens_out=None,
        )
    )
    assert fold.tokens == {}
    assert fold.cancellations == {("llama-3", "acme", "waiting"): 1}
    assert all(not family.series for family in fold.histograms.values())


def test_plain_answers_are_no_streams():
    fold = aggregate()
    fold(ended(stream=False))
    assert fold.histograms["stream_duration_seconds"].series == {}


def test_refusals_waits_retries_and_drains_have_their_own_series():
    fold = aggregate()
    fold(refused())
    fold(refused(model=None, tenant="", code="invalid_api_key"))
    fold(WaitEnded("llama-3", "acme", 0.3, "granted"))
    fold(WaitEnded("llama-3", "acme", 10.0, "queue_timeout"))
    fold(Retried("gpu-a", "full"))
    fold(Drained("gpu-a", "peer_closed", 0.2))
    fold(BackendChanged("gpu-a", up=False, breaker="open", reason="refused"))
    assert fold.rejections == {("llama-3", "acme", "queue_full"): 1, ("", "", "invalid_api_key"): 1}
    assert set(fold.histograms["admission_wait_seconds"].series) == {
        ("llama-3", "granted"),
        ("llama-3", "queue_timeout"),
    }
    assert fold.retries == {("gpu-a", "full"): 1}
    assert fold.drains == {("gpu-a", "peer_closed"): 1}
    assert fold.requests == {}


def test_made_up_models_and_tenants_count_as_other():
    fold = aggregate()
    for i in range(100):
        fold(refused(model=f"made-up-{i}", tenant=f"nobody-{i}", code="model_not_found"))
        fold(ended(model=f"made-up-{i}", tenant=f"nobody-{i}"))
    assert fold.rejections == {("other", "other", "model_not_found"): 100}
    assert fold.requests == {("other", "other", "complete", "ok"): 100}
    assert set(fold.histograms["stream_duration_seconds"].series) == {("other",)}


def test_a_new_configuration_drops_the_series_of_what_is_gone():
    fold = aggregate(tenant_histograms=True)
    fold(ended())
    fold(ended(tenant="globex"))
    fold(ended(tenant="stranger"))
    fold(WaitEnded("embed", "globex", 1.0, "granted"))
    fold.configure({"llama-3"}, {"acme"})
    assert set(fold.requests) == {
        ("llama-3", "acme", "complete", "ok"),
        ("llama-3", "other", "complete", "ok"),
    }
    assert fold.histograms["admission_wait_seconds"].series == {}
    assert set(fold.histograms["stream_duration_seconds"].series) == {
        ("llama-3", "acme"),
        ("llama-3", "other"),
    }
    assert set(fold.histograms["backend_first_content_seconds"].series) == {("gpu-a",)}


def test_tenant_histograms_are_opt_in():
    fold = aggregate(tenant_histograms=True)
    fold(ended())
    fold(WaitEnded("llama-3", "acme", 0.3, "granted"))
    assert set(fold.histograms["stream_duration_seconds"].series) == {("llama-3", "acme")}
    assert set(fold.histograms["admission_wait_seconds"].series) == {("llama-3", "acme", "granted")}


def test_a_bound_belongs_to_its_bucket():
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total_s == pytest.approx(6.6)


def test_duration_buckets_reach_600_s_and_rise():
    for bounds in HISTOGRAMS.values():
        assert bounds[-1] == 600.0
        assert list(bounds) == sorted(set(bounds))


def test_buckets_can_be_chosen_and_nonsense_is_refused():
    fold = aggregate(buckets={"stream_duration_seconds": [1, 10]})
    assert fold.histograms["stream_duration_seconds"].bounds == (1.0, 10.0)
    with pytest.raises(ValueError, match="no histogram"):
        aggregate(buckets={"nonsense": [1]})
    with pytest.raises(ValueError, match="above the one before"):
        aggregate(buckets={"stream_duration_seconds": [2, 1]})
    with pytest.raises(ValueError, match="at least one"):
        aggregate(buckets={"stream_duration_seconds": []})


def test_recent_rates_are_over_whole_seconds_by_kind():
    rates = RecentRates(window_s=4)
    for second in range(100, 106):
        for _ in range(8):
            rates(refused(at=second + 0.5))
        rates(ended(at=second + 0.1))
        rates(ended(at=second + 0.2, cause="client_gone"))
    rates(Retried("gpu-a", "full"))
    rates(refused(at=50.0))  # its second has long been given to another
    now = rates.rates(105.9)
    assert now["refused"] == 8.0
    assert now["completed"] == 1.0
    assert now["cancelled"] == 1.0
    assert now["failed"] == now["expired"] == 0.0
    assert rates.rates(200.0)["refused"] == 0.0
