"""What the admin port shows, and who provides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from inferencemesh.core.snapshot import Snapshot


class AdminView(Protocol):
    """The runtime, as the admin port sees it. Every method is synchronous, cheap, and called in the loop."""

    @property
    def metrics_registry(self) -> CollectorRegistry:
        """Where `/metrics` reads; a `telemetry.prometheus.MeshRegistry` is rendered outside the loop."""

    def state(self) -> Mapping[str, Any]:
        """The document of `/api/state`, from one snapshot (contract F2); `state.build_state` makes it."""

    def snapshot(self) -> Snapshot:
        """Admission's snapshot of this instant."""

    def ready(self) -> tuple[bool, list[str]]:
        """Whether new requests are served, and the reasons why not or why only in part."""

    def requests(self) -> Sequence[Mapping[str, Any]]:
        """The live requests, newest last: ids, names, times and sizes; never contents."""
