"""The gateway of one process: builds the parts, runs the one sweep, and shuts down in order (contract B7)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inferencemesh.admin.state import BackendFacts, Estimate, StateExtras, TenantLimits, build_state
from inferencemesh.core.admission import Admission
from inferencemesh.core.events import BackendChanged
from inferencemesh.core.phase import Step
from inferencemesh.core.snapshot import Snapshot
from inferencemesh.runtime.app import PublicApp
from inferencemesh.runtime.build import health_of, server_limits, upstream_of
from inferencemesh.runtime.drain import Drain, Drains
from inferencemesh.runtime.engines.registry import engine_named
from inferencemesh.runtime.exchange import Exchange
from inferencemesh.runtime.garbage import collect_seldom
from inferencemesh.runtime.gate import Gate
from inferencemesh.runtime.http1.limits import ByteBudget
from inferencemesh.runtime.http1.server import HttpServer
from inferencemesh.runtime.probes import Probes
from inferencemesh.runtime.services import Services
from inferencemesh.runtime.settings import settings_of
from inferencemesh.runtime.upstream import Upstream
from inferencemesh.telemetry.aggregate import Aggregate
from inferencemesh.telemetry.hub import Hub
from inferencemesh.telemetry.log import Log
from inferencemesh.telemetry.prometheus import MeshCollector, MeshRegistry, metrics_registry
from inferencemesh.telemetry.recent import RecentRates

if TYPE_CHECKING:
    from inferencemesh.config.schema import Mesh

SWEEP_S = 0.1  # the grain of every time limit
LAST_ANSWERS_S = 1.0  # how long connections may take to end by themselves when everything is answered


class Gateway:
    """See the module. `start`, then `shut_down` once; `kill` for a second signal.

    `slots` gives the number for each backend whose configuration says `auto`.
    """

    def __init__(
        self,
        mesh: Mesh,
        log: Log,
        *,
        slots: Mapping[str, int] | None = None,
        simulator: bool = False,
        seed: int | None = None,
    ) -> None:
        self.mesh = mesh
        self.log = log
        self.simulator = simulator
        self._slots = dict(slots or {})
        # Spreads retries and makes ids; no secret depends on it.
        self._rng = random.Random(seed if seed is not None else os.urandom(16))  # noqa: S311
        self.started_at = time.time()
        self.live: set[Exchange] = set()
        queue = mesh.admission.queue
        self._facts = {
            backend.name: BackendFacts(
                backend.url,
                engine_named(backend.engine).name,
                tuple(model.name for model in mesh.models if backend.name in model.backends),
            )
            for backend in mesh.backends
        }
        self._tenant_limits = {
            tenant.name: TenantLimits(tenant.max_running, tenant.max_waiting)
            for tenant in mesh.served_tenants
        }
        self._limits = {
            "max_running": mesh.admission.max_running,
            "max_waiting_total": queue.max_waiting_total,
            "max_waiting_bytes": queue.max_waiting_bytes,
            "buffered_bytes": mesh.server.limits.buffered_bytes,
        }
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing = False
        self._emptied: asyncio.Future[None] | None = None

    async def start(self, sock: Any | None = None) -> None:
        """Accept requests. Raises OSError when the address cannot be had."""
        mesh = self.mesh
        loop = asyncio.get_running_loop()
        self._loop = loop
        core = mesh.to_core(self._slots)
        self.admission = Admission(*core.args, rng=self._rng, **core.options)
        self.aggregate = Aggregate([m.name for m in mesh.models], self._tenant_names())
        self.rates = RecentRates()
        self.hub = Hub([self.aggregate, self.rates, self.log])
        self.gate = Gate(self.admission, loop=loop, emit=self.hub.emit, bug=self._bug)
        self.drains = Drains(self.gate, loop, emit=self.hub.emit, alarm=self._drain_alarm)
        self.upstreams = {backend.name: upstream_of(mesh, backend) for backend in mesh.backends}
        self.services = Services(
            gate=self.gate,
            drains=self.drains,
            loop=loop,
            emit=self.hub.emit,
            bug=self._bug,
            rng=self._rng,
            upstreams=self.upstreams,
            live=self.live,
            expose_backend=mesh.server.expose_backend,
            overload_status=mesh.admission.overload_status,
        )
        self.keys = mesh.key_ring()
        self.app = PublicApp(
            self.services,
            settings_of(mesh),
            self.keys,
            body_bytes=mesh.server.limits.body_bytes,
            ready=self.ready,
            rng=self._rng,
        )
        self.budget = ByteBudget(mesh.server.limits.buffered_bytes)
        self.http = HttpServer(self.app, server_limits(mesh), self.budget)
        collector = MeshCollector(
            self.aggregate,
            self.snapshot,
            running=self._running_by_tenant,
            buffered=self._buffered,
            dropped=self._dropped,
        )
        self.metrics_registry: MeshRegistry = metrics_registry(collector)
        self.probes = Probes(self.gate, self._backend_changed)
        await self.http.start(mesh.server.host, mesh.server.port)
        self.probes.start(self.upstreams, {backend.name: health_of(backend) for backend in mesh.backends})
        self._sweep()
        collect_seldom()

    @property
    def port(self) -> int:
        """The public port."""
        return self.http.port

    # --- the sweep ----------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """One timer for every time limit of the data path; none is armed per request or per event."""
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        now = self._loop.time()
        for part in (self.http.sweep, self._check_live, self.drains.sweep, self._sweep_pools):
            try:
                part(now)
            except Exception as bug:
                self._bug("the sweep failed", bug)

    def _check_live(self, now: float) -> None:
        for exchange in list(self.live):
            exchange.check(now)
        if not self.live and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _sweep_pools(self, now: float) -> None:
        for upstream in self.upstreams.values():
            upstream.pool.sweep(now)

    # --- shutdown -----------------------------------------------------------------------------------------------

    async def shut_down(self) -> int:
        """End in order (contract B7); returns how many requests were cut off. Safe to cancel with `kill`."""
        server = self.mesh.server
        began_at = self._loop.time()
        self._closing = True
        self.app.shutting_down = True
        self.admission.refuse_all("shutting_down")
        self.http.begin_shutdown()
        if server.shutdown_waiters == "refuse":
            for exchange in list(self.live):
                if exchange.step in (Step.VALIDATED, Step.WAITING):
                    exchange.shut_down()
        if server.lame_duck > 0:
            await asyncio.sleep(server.lame_duck)
        self.http.stop_accepting()
        grace_s = max(0.0, server.shutdown_grace - (self._loop.time() - began_at))
        await self._until_empty(grace_s)
        cut = len(self.live)
        for exchange in list(self.live):
            exchange.shut_down()
        await self._until_empty(self.mesh.timeouts.cleanup)
        await self._close(self.mesh.timeouts.cleanup)
        return cut

    async def kill(self) -> None:
        """End at once: what runs is cut off with the error event, nothing is waited for but our own tasks."""
        self._closing = True
        self.app.shutting_down = True
        for exchange in list(self.live):
            exchange.shut_down()
        await self._until_empty(1.0)
        await self._close(0.0)

    async def _until_empty(self, within_s: float) -> None:
        if not self.live or within_s <= 0:
            return
        self._emptied = self._loop.create_future()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._emptied, within_s)
        self._emptied = None

    async def _close(self, within_s: float) -> None:
        await self.probes.close()
        # What was answered a moment ago may still be on its way: a reset would take it from the caller.
        await self.http.close(LAST_ANSWERS_S if within_s > 0 else 0.0)
        tasks = [exchange.task for exchange in self.live if exchange.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        abandoned = await self.drains.close(within_s)
        if abandoned:
            self.log.logger.warning("drains_abandoned", count=abandoned)
        for upstream in self.upstreams.values():
            await upstream.pool.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.gate.close()

    # --- sight (admin.view.AdminView) ---------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Admission's books at this instant (contract F2)."""
        return self.admission.snapshot(self._loop.time())

    def ready(self) -> tuple[bool, list[str]]:
        """Readiness fails while shutting down and when no backend is usable."""
        if self._closing:
            return False, ["shutting_down"]
        reasons = [
            f"backend {upstream.name}: {'down' if not upstream.up else upstream.degraded}"
            for upstream in self.upstreams.values()
            if not upstream.up or upstream.degraded
        ]
        return any(upstream.up for upstream in self.upstreams.values()), reasons

    def state(self) -> Mapping[str, Any]:
        """The document of `/api/state`, from one snapshot (contract F2)."""
        at = time.time()
        ready, reasons = self.ready()
        snapshot = self.snapshot()
        extras = StateExtras(
            scope="process",
            estimates={line.model: Estimate(line.service_s, line.wait_s) for line in snapshot.lines},
            simulator=self.simulator,
            started_at=self.started_at,
            connections=self.http.connections,
            backends=self._facts,
            tenants=self._tenant_limits,
            limits=self._limits,
            buffered_bytes=self._buffered(),
            rates=self.rates.rates(at),
        )
        return build_state(snapshot, at=at, ready=ready, degraded=reasons, extras=extras)

    def requests(self) -> Sequence[Mapping[str, Any]]:
        """The live requests; never contents."""
        now = self._loop.time()
        return [
            {
                "id": exchange.request.id,
                "tenant": exchange.request.tenant,
                "model": exchange.request.model,
                "step": str(exchange.step),
                "phase": str(exchange.phase),
                "backend": exchange.attempt.upstream.name if exchange.attempt is not None else None,
                "attempts": exchange.attempts,
                "stream": exchange.stream,
                "age_s": round(now - exchange.request.arrived_at, 3),
                "waited_s": round(exchange.waited_s(now), 3),
                "bytes_out": exchange.responder.bytes_out,
            }
            for exchange in sorted(self.live, key=lambda live: live.request.arrived_at)
        ]

    def _running_by_tenant(self) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for exchange in self.live:
            if exchange.step is not Step.WAITING:
                key = (exchange.request.model, exchange.request.tenant)
                counts[key] = counts.get(key, 0) + 1
        return counts

    def _buffered(self) -> dict[str, int]:
        return {
            "bodies": self.budget.used,
            "responses": sum(exchange.responder.unsent_bytes() for exchange in self.live),
        }

    def _dropped(self) -> dict[str, int]:
        return {**self.hub.dropped(), "log_lines": self.log.dropped_total}

    # --- what is worth a line in the log ------------------------------------------------------------------------

    def _tenant_names(self) -> list[str]:
        return [tenant.name for tenant in self.mesh.served_tenants]

    def _backend_changed(self, upstream: Upstream, up: bool, reason: str) -> None:
        self.hub.emit(BackendChanged(upstream.name, up, "closed", reason))

    def _drain_alarm(self, drain: Drain, age_s: float) -> None:
        self.log.logger.error(
            "drain_overdue",
            backend=drain.upstream.name,
            age_s=round(age_s, 1),
            advice="the backend does not stop what was cancelled; look at it, or set backends[].drain",
        )

    def _bug(self, what: str, bug: BaseException) -> None:
        self.log.logger.error("bug", what=what, exc_info=bug)
