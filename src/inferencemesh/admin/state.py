"""The document of `/api/state`: admission's snapshot with what the runtime knows beside it (contract F2).

Everything that must add up comes from the one snapshot, taken in one synchronous step. Durations in seconds
(`_s`), sizes in bytes, `at` in Unix seconds. Limits carry their scope (contract E1).
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import inferencemesh
from inferencemesh.core.snapshot import BackendView, LineView, Snapshot, TenantView
from inferencemesh.telemetry.prometheus import free_slots


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What the configuration and the probes know of a backend."""

    url: str = ""
    engine: str = ""
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a line's estimator believes; None where it knows nothing yet."""

    service_s: float | None = None
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """A tenant's own bounds; None is none."""

    max_running: int | None = None
    max_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class StateExtras:
    """What is shown beside the snapshot. All of it is optional: what is not known is left out."""

    scope: str = "process"
    simulator: bool = False
    started_at: float | None = None  # Unix seconds
    backends: Mapping[str, BackendFacts] = field(default_factory=dict)
    estimates: Mapping[str, Estimate] = field(default_factory=dict)  # by model
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    limits: Mapping[str, float | None] = field(default_factory=dict)
    buffered_bytes: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    connections: int | None = None


def build_state(
    snapshot: Snapshot, *, at: float, ready: bool, degraded: Iterable[str], extras: StateExtras | None = None
) -> dict[str, Any]:
    """The whole document, JSON-ready. `degraded` are the reasons that readiness gives."""
    extras = extras if extras is not None else StateExtras()
    document: dict[str, Any] = {
        "at": at,
        "ready": ready,
        "degraded": list(degraded),
        "scope": extras.scope,
        "simulator": extras.simulator,
        "version": inferencemesh.__version__,
        "python": platform.python_version(),
        "backends": [_backend(view, extras) for view in snapshot.backends],
        "models": [_model(line, extras) for line in snapshot.lines],
        "tenants": [_tenant(view, extras) for view in snapshot.tenants],
        "totals": asdict(snapshot.totals),
        "limits": dict(extras.limits),
        "buffered_bytes": dict(extras.buffered_bytes),
        "rates": {name: round(rate, 3) for name, rate in extras.rates.items()},
    }
    if extras.started_at is not None:
        document["uptime_s"] = max(0.0, round(at - extras.started_at, 3))
    if extras.connections is not None:
        document["connections"] = extras.connections
    return document


def public_url(url: str) -> str:
    """A backend's URL without user, password, query and fragment: what may be shown."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return ""
    return urlunsplit((parts.scheme, host + port, parts.path, "", ""))


def _backend(view: BackendView, extras: StateExtras) -> dict[str, Any]:
    facts = extras.backends.get(view.name, BackendFacts())
    return {
        "name": view.name,
        "url": public_url(facts.url),
        "engine": facts.engine,
        "models": list(facts.models),
        "up": view.up,
        "cordoned": view.cordoned,
        "breaker": view.breaker,
        "slots": {
            "capacity": view.capacity,
            "free": free_slots(view),
            "running": view.running,
            "draining": view.draining,
            "believed": view.believed,
            "draining_oldest_s": round(view.draining_oldest_s, 3),
        },
        "reserved_for": view.reserved_for,
    }


def _model(line: LineView, extras: StateExtras) -> dict[str, Any]:
    estimate = extras.estimates.get(line.model, Estimate())
    serving = [name for name, facts in extras.backends.items() if line.model in facts.models]
    return {
        "name": line.model,
        "backends": serving,
        "waiting": {
            "total": line.total,
            "oldest_s": round(line.oldest_s, 3),
            "by_tenant": dict(line.by_tenant),
            "limit": line.limit,
        },
        "estimate": {"service_s": estimate.service_s, "wait_s": estimate.wait_s},
    }


def _tenant(view: TenantView, extras: StateExtras) -> dict[str, Any]:
    limits = extras.tenants.get(view.name, TenantLimits())
    return {
        "name": view.name,
        "running": view.running,
        "draining": view.draining,
        "waiting": view.waiting,
        "service": round(view.service, 3),
        "weight": view.weight,
        "max_running": limits.max_running,
        "max_waiting": limits.max_waiting,
    }
