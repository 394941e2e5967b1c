"""What was counted and what stands now, as Prometheus metrics (interface "Metrics", prefix `inferencemesh_`).

The collector reads nothing until it is scraped. A scrape has two halves: `frozen` copies counters and takes
one snapshot in a single synchronous step, so that the numbers add up (contract F2); rendering may then happen
in another thread. A limit's scope is a label (contract E1).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

import inferencemesh
from inferencemesh.core.snapshot import BackendView, Snapshot
from inferencemesh.telemetry.aggregate import Aggregate, Counts, Family, Labels

PREFIX = "inferencemesh_"
BREAKER_STATES = {"closed": 0, "half_open": 1, "open": 2}

_COUNTERS = {
    "requests": (
        "Accepted requests that have ended, by how far the response had come and why.",
        ("model", "tenant", "phase", "cause"),
    ),
    "rejections": ("Requests answered without having been accepted.", ("model", "tenant", "code")),
    "cancellations": (
        "Accepted requests whose caller left or that an operator cancelled, by the stage reached.",
        ("model", "tenant", "stage"),
    ),
    "drains": (
        "Draining slots that were given back, by the evidence that the backend had stopped.",
        ("backend", "evidence"),
    ),
    "cleanups_overdue": (
        "Connections that a backend kept open beyond timeouts.cleanup after we had ended them.",
        ("backend",),
    ),
    "retries": ("Attempts that went back to the head of their line.", ("backend", "reason")),
    "tokens": (
        "Tokens as the backends reported them; unknown usage is not counted.",
        ("model", "tenant", "kind"),
    ),
}
_HISTOGRAMS = {
    "admission_wait_seconds": (
        "Time in the line of requests that waited, by its result.",
        ("model", "result"),
    ),
    "time_to_first_content_seconds": ("From a request's arrival to its first content.", ("model",)),
    "backend_first_content_seconds": ("From the dispatch to a backend to its first content.", ("backend",)),
    "stream_duration_seconds": ("From arrival to the end, of streams that had started.", ("model",)),
}

Gauges = Mapping[str, float]
RunningByTenant = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Frame:
    """One instant of all metrics, as a collector: copies, which may be rendered in any thread."""

    counters: Mapping[str, Counts]
    histograms: Mapping[str, Family]
    tenant_histograms: bool
    snapshot: Snapshot | None
    scope: str
    waiting: Counts
    running: Counts
    buffered: Gauges
    dropped: Mapping[str, int]

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        for name, (text, labels) in _COUNTERS.items():
            yield _counter(name, text, labels, self.counters[name])
        for name, family in self.histograms.items():
            text, labels = _HISTOGRAMS[name]
            yield _histogram(name, text, self._with_tenant(labels), family)
        if self.snapshot is not None:
            yield from self._gauges(self.snapshot)
        yield _gauge("waiting", "Requests with a place in the line.", ("model", "tenant"), self.waiting)
        yield _gauge("running", "Requests that hold slots.", ("model", "tenant"), self.running)
        yield _gauge(
            "buffered_bytes",
            "Bytes that the gateway itself holds, by what they are.",
            ("kind",),
            {(kind,): size for kind, size in self.buffered.items()},
        )
        yield _counter(
            "telemetry_dropped",
            "Events or log lines that were lost on a failing or slow sink.",
            ("sink",),
            {(sink,): count for sink, count in self.dropped.items()},
        )
        yield _gauge(
            "build_info",
            "Always 1; the labels say what is running.",
            ("version", "python"),
            {(inferencemesh.__version__, platform.python_version()): 1},
        )

    def _with_tenant(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        if self.tenant_histograms and labels[0] == "model":
            return ("model", "tenant", *labels[1:])
        return labels

    def _gauges(self, snapshot: Snapshot) -> Iterator[Metric]:
        backends = snapshot.backends
        slots: dict[Labels, float] = {}
        for view in backends:
            slots[view.name, "free", self.scope] = free_slots(view)
            slots[view.name, "running", self.scope] = view.running
            slots[view.name, "draining", self.scope] = view.draining
        yield _gauge("slots", "A backend's slots by state.", ("backend", "state", "scope"), slots)
        yield _per_backend(
            "slots_believed",
            "What a backend's own answers leave of its slots (it said full).",
            {view.name: view.believed for view in backends},
        )
        yield _per_backend(
            "draining_oldest_seconds",
            "Age of the oldest draining slot.",
            {view.name: view.draining_oldest_s for view in backends},
        )
        yield _per_backend(
            "backend_up", "1 if the backend is reachable.", {view.name: int(view.up) for view in backends}
        )
        yield _per_backend(
            "breaker_state",
            "0 closed, 1 half open, 2 open.",
            {view.name: BREAKER_STATES.get(view.breaker, 2) for view in backends},
        )
        yield _gauge(
            "oldest_waiter_seconds",
            "How long the oldest request in the line has waited.",
            ("model",),
            {(line.model,): line.oldest_s for line in snapshot.lines},
        )
        returns: dict[Labels, float] = {}
        for line in snapshot.lines:
            returns[line.model, "admitted"] = line.returns_admitted
            returns[line.model, "refused"] = line.returns_refused
        yield _counter(
            "returns",
            "Refused callers who came back at the time that Retry-After had told them, by what they found.",
            ("model", "result"),
            returns,
        )


def free_slots(view: BackendView) -> int:
    """`max(0, capacity - held)` of the contract; those above `believed` are free and not given out (B6)."""
    return max(0, view.capacity - view.running - view.draining)


class MeshCollector:
    """The collector of a process.

    `snapshot` gives admission's snapshot of this instant; `running` the running requests by (model, tenant)
    (without it they are shown by tenant, with an empty model); `buffered` bytes by kind; `dropped` lost
    events or lines by sink. `scope` is process, host or service.
    """

    def __init__(
        self,
        aggregate: Aggregate,
        snapshot: Callable[[], Snapshot] | None = None,
        *,
        scope: str = "process",
        running: Callable[[], RunningByTenant] | None = None,
        buffered: Callable[[], Gauges] | None = None,
        dropped: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self._aggregate = aggregate
        self._snapshot = snapshot
        self._scope = scope
        self._running = running
        self._buffered = buffered
        self._dropped = dropped

    def frozen(self) -> Frame:
        """Everything as it stands now; call it where events are folded (the loop's thread)."""
        aggregate = self._aggregate
        snapshot = self._snapshot() if self._snapshot is not None else None
        # Where there was traffic a zero is shown, rather than a series that comes and goes.
        waiting: Counts = {(labels[0], labels[1]): 0 for labels in aggregate.requests}
        running = waiting.copy()
        if snapshot is not None:
            for line in snapshot.lines:
                for tenant, count in line.by_tenant.items():
                    _count(waiting, aggregate, line.model, tenant, count)
        if self._running is not None:
            for (model, tenant), count in self._running().items():
                _count(running, aggregate, model, tenant, count)
        elif snapshot is not None:
            running = {}
            for view in snapshot.tenants:
                _count(running, aggregate, "", view.name, view.running)
        return Frame(
            counters={name: dict(getattr(aggregate, name)) for name in _COUNTERS},
            histograms={name: family.copy() for name, family in aggregate.histograms.items()},
            tenant_histograms=aggregate.tenant_histograms,
            snapshot=snapshot,
            scope=self._scope,
            waiting=waiting,
            running=running,
            buffered=dict(self._buffered()) if self._buffered is not None else {},
            dropped=dict(self._dropped()) if self._dropped is not None else {},
        )

    def collect(self) -> Iterable[Metric]:
        """Freeze and render at once."""
        return self.frozen().collect()


class MeshRegistry(CollectorRegistry):
    """A registry that can freeze its collectors, so that only copying happens in the loop's thread."""

    def frozen(self) -> FrozenRegistry:
        """Each collector's frozen copy, or itself where it has none."""
        return FrozenRegistry(
            [getattr(collector, "frozen", lambda c=collector: c)() for collector in self._collector_to_names]
        )


class FrozenRegistry:
    """What the exposition helpers of prometheus_client take: an object with `collect`."""

    def __init__(self, collectors: Sequence[Frame]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        """Yield every family of every collector."""
        for collector in self._collectors:
            yield from collector.collect()


def metrics_registry(collector: MeshCollector, *, process: bool = True) -> MeshRegistry:
    """A registry with the collector and, where the system tells, the process's own memory, CPU and files."""
    registry = MeshRegistry()
    registry.register(collector)
    if process:
        ProcessCollector(registry=registry)
    return registry


def _count(counts: Counts, aggregate: Aggregate, model: str, tenant: str, count: int) -> None:
    labels = (aggregate.model_label(model), aggregate.tenant_label(tenant))
    counts[labels] = counts.get(labels, 0) + count


def _counter(name: str, text: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _gauge(name: str, text: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _per_backend(name: str, text: str, values: Mapping[str, float]) -> Metric:
    return _gauge(name, text, ("backend",), {(backend,): value for backend, value in values.items()})


def _histogram(name: str, text: str, labels: Sequence[str], values: Family) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    edges = [*(repr(bound) for bound in values.bounds), "+Inf"]
    for key, series in values.series.items():
        running = 0
        buckets: list[tuple[str, float]] = []
        for edge, count in zip(edges, series.counts, strict=True):
            running += count
            buckets.append((edge, running))
        family.add_metric(key, buckets, series.total_s)
    return family
