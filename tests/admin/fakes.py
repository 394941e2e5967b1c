"""A view with numbers to show, and one request against an admin application."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from starlette.types import ASGIApp

from inferencemesh.admin.state import BackendFacts, Estimate, StateExtras, TenantLimits, build_state
from inferencemesh.core.snapshot import Snapshot
from inferencemesh.telemetry.aggregate import Aggregate
from inferencemesh.telemetry.prometheus import MeshCollector, MeshRegistry, metrics_registry
from tests.telemetry import facts

EXTRAS = StateExtras(
    started_at=1_790_000_000.0,
    backends={
        "gpu-a": BackendFacts("http://user:secret@10.0.0.1:8000/v1?key=hidden", "vllm", ("llama-3",)),
        "gpu-b": BackendFacts("http://[::1]:8001", "sim", ("llama-3", "embed")),
    },
    estimates={"llama-3": Estimate(service_s=4.2, wait_s=2.1)},
    tenants={"acme": TenantLimits(max_running=4)},
    limits={"max_waiting_total": 10_000},
    buffered_bytes={"bodies": 3072},
    rates={"completed": 1.23456},
    connections=9,
)


class FakeView:
    """What the runtime would be."""

    def __init__(
        self, *, extras: StateExtras = EXTRAS, reasons: list[str] | None = None, ready: bool = True
    ) -> None:
        self.extras = extras
        self.reasons = reasons or []
        self.is_ready = ready
        self.polls = 0
        self.fail_after: int | None = None
        fold = Aggregate({"llama-3", "embed"}, {"acme", "globex"})
        fold(facts.ended())
        self.registry = metrics_registry(MeshCollector(fold, self.snapshot))

    @property
    def metrics_registry(self) -> MeshRegistry:
        return self.registry

    def snapshot(self) -> Snapshot:
        return facts.snapshot()

    def ready(self) -> tuple[bool, list[str]]:
        return self.is_ready, self.reasons

    def state(self) -> Mapping[str, Any]:
        self.polls += 1
        if self.fail_after is not None and self.polls > self.fail_after:
            raise RuntimeError("a bug that no caller may read about")
        at = 1_790_000_100.0 + self.polls / 2
        return build_state(
            self.snapshot(), at=at, ready=self.is_ready, degraded=self.reasons, extras=self.extras
        )

    def requests(self) -> Sequence[Mapping[str, Any]]:
        return [{"id": "req-1", "tenant": "acme", "model": "llama-3", "backend": "gpu-a", "state": "running"}]


def ask(
    app: ASGIApp,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    base: str = "http://127.0.0.1:8081",
) -> httpx.Response:
    """One request, without a socket."""

    async def once() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(once())
