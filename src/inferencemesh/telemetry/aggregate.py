"""Events folded into plain counters and histogram buckets: a few dict and list operations per request.

Nothing here knows of Prometheus; `prometheus.py` renders what is kept here at scrape time. Label values are
bounded: models and tenants outside the configured sets count as `other`; a request refused before its model
or tenant was known has an empty one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from inferencemesh.core.events import (
    BackendChanged,
    CleanupOverdue,
    Drained,
    Event,
    RequestEnded,
    RequestRefused,
    Retried,
    WaitEnded,
)
from inferencemesh.core.outcome import Phase

OTHER = "other"

#: Upper bounds in seconds. The usual tails stop at 10 s, but a line and a long answer last minutes.
WAIT_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
CONTENT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
STREAM_BUCKETS = (
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    180.0,
    300.0,
    450.0,
    600.0,
)

HISTOGRAMS: Mapping[str, Sequence[float]] = {
    "admission_wait_seconds": WAIT_BUCKETS,
    "time_to_first_content_seconds": CONTENT_BUCKETS,
    "backend_first_content_seconds": CONTENT_BUCKETS,
    "stream_duration_seconds": STREAM_BUCKETS,
}

Labels = tuple[str, ...]
Counts = dict[Labels, int]


class Histogram:
    """One series: counts per bucket (the last one is +Inf, not cumulative) and the sum in seconds."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count one duration in seconds; a bound belongs to its bucket (`le`)."""
        self.counts[bisect_left(self.bounds, value_s)] += 1
        self.total_s += value_s

    def copy(self) -> Histogram:
        """A copy that later observations do not change."""
        other = Histogram(self.bounds)
        other.counts = self.counts.copy()
        other.total_s = self.total_s
        return other


class Family:
    """One histogram metric: a series for each tuple of label values."""

    __slots__ = ("bounds", "series")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.series: dict[Labels, Histogram] = {}

    def observe(self, labels: Labels, value_s: float) -> None:
        """Count one duration under `labels`."""
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = Histogram(self.bounds)
        series.observe(value_s)

    def copy(self) -> Family:
        """A copy that later observations do not change."""
        other = Family(self.bounds)
        other.series = {labels: series.copy() for labels, series in self.series.items()}
        return other


class Aggregate:
    """A subscriber of the hub that counts.

    `models` and `tenants` are the configured names. With `tenant_histograms` the histograms that have a model
    have a tenant too. `buckets` replaces the bounds of histograms by metric name, without the prefix.
    Raises ValueError for buckets that name no histogram or do not rise.
    """

    name = "metrics"

    __slots__ = (
        "_models",
        "_tenants",
        "cancellations",
        "cleanups_overdue",
        "drains",
        "histograms",
        "rejections",
        "requests",
        "retries",
        "tenant_histograms",
        "tokens",
    )

    def __init__(
        self,
        models: Iterable[str] = (),
        tenants: Iterable[str] = (),
        *,
        tenant_histograms: bool = False,
        buckets: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self._models = frozenset(models)
        self._tenants = frozenset(tenants)
        self.tenant_histograms = tenant_histograms
        self.requests: Counts = {}  # model, tenant, phase, cause
        self.rejections: Counts = {}  # model, tenant, code
        self.cancellations: Counts = {}  # model, tenant, stage
        self.drains: Counts = {}  # backend, evidence
        self.retries: Counts = {}  # backend, reason
        self.cleanups_overdue: Counts = {}  # backend
        self.tokens: Counts = {}  # model, tenant, kind
        self.histograms = {name: Family(bounds) for name, bounds in _bounds(buckets or {}).items()}

    def configure(self, models: Iterable[str], tenants: Iterable[str]) -> None:
        """Take the names of a new configuration; series of names that are gone are dropped with them."""
        self._models = frozenset(models)
        self._tenants = frozenset(tenants)
        for counts in (self.requests, self.rejections, self.cancellations, self.tokens):
            for labels in [key for key in counts if not self._known(key[0], key[1])]:
                del counts[labels]
        for name, family in self.histograms.items():
            if name == "backend_first_content_seconds":
                continue
            for labels in [key for key in family.series if not self._known(key[0], self._tenant_in(key))]:
                del family.series[labels]

    def __call__(self, event: Event) -> None:
        """Fold one event."""
        if isinstance(event, RequestEnded):
            self._ended(event)
        elif isinstance(event, RequestRefused):
            _add(self.rejections, (self._model(event.model), self._tenant(event.tenant), event.code))
        elif isinstance(event, WaitEnded):
            self._observe("admission_wait_seconds", event.model, event.tenant, event.wait_s, event.result)
        elif isinstance(event, Retried):
            _add(self.retries, (event.backend, event.reason))
        elif isinstance(event, Drained):
            _add(self.drains, (event.backend, event.evidence))
        elif isinstance(event, CleanupOverdue):
            _add(self.cleanups_overdue, (event.backend,))
        else:
            _: BackendChanged = event  # a state, read from the snapshot

    def _ended(self, event: RequestEnded) -> None:
        model = self._model(event.model)
        tenant = self._tenant(event.tenant)
        _add(self.requests, (model, tenant, str(event.phase), event.cause))
        if event.stage is not None:
            _add(self.cancellations, (model, tenant, event.stage))
        # Unknown usage is not reported as zero.
        if event.tokens_in is not None:
            _add(self.tokens, (model, tenant, "input"), event.tokens_in)
        if event.tokens_out is not None:
            _add(self.tokens, (model, tenant, "output"), event.tokens_out)
        if event.first_content_s is not None:
            self._observe("time_to_first_content_seconds", model, tenant, event.first_content_s)
        if event.backend_first_content_s is not None and event.backend is not None:
            self.histograms["backend_first_content_seconds"].observe(
                (event.backend,), event.backend_first_content_s
            )
        if event.stream and event.phase is not Phase.BEFORE_HEADERS:
            self._observe("stream_duration_seconds", model, tenant, event.duration_s)

    def _observe(self, name: str, model: str, tenant: str, value_s: float, *more: str) -> None:
        model = self._model(model)
        labels = (model, self._tenant(tenant), *more) if self.tenant_histograms else (model, *more)
        self.histograms[name].observe(labels, value_s)

    def model_label(self, model: str | None) -> str:
        """The label value of a model's name."""
        return self._model(model)

    def tenant_label(self, tenant: str | None) -> str:
        """The label value of a tenant's name."""
        return self._tenant(tenant)

    def _model(self, model: str | None) -> str:
        if model in self._models:
            return model
        return OTHER if model else ""

    def _tenant(self, tenant: str | None) -> str:
        if tenant in self._tenants:
            return tenant
        return OTHER if tenant else ""

    def _tenant_in(self, labels: Labels) -> str:
        return labels[1] if self.tenant_histograms else ""

    def _known(self, model: str, tenant: str) -> bool:
        return self._model(model) in (model, "") and self._tenant(tenant) in (tenant, "")


def _add(counts: Counts, labels: Labels, amount: int = 1) -> None:
    counts[labels] = counts.get(labels, 0) + amount


def _bounds(chosen: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    for name, bounds in chosen.items():
        if name not in HISTOGRAMS:
            raise ValueError(f"buckets: no histogram is called {name!r}; there are {', '.join(HISTOGRAMS)}")
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"buckets of {name}: at least one bound, each above the one before")
    return {**HISTOGRAMS, **{name: [float(bound) for bound in bounds] for name, bounds in chosen.items()}}
