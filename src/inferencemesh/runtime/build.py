"""From a validated configuration to the parts of a running gateway."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from inferencemesh.runtime.engines.registry import engine_named
from inferencemesh.runtime.http1.client import ConnectionPool
from inferencemesh.runtime.http1.limits import ServerLimits
from inferencemesh.runtime.limits import open_file_limit
from inferencemesh.runtime.probes import HealthSettings
from inferencemesh.runtime.upstream import DrainSettings, Upstream

if TYPE_CHECKING:
    from inferencemesh.config.schema import Backend, Mesh

# Open files kept back from the connection limit: log, listeners, probes, the interpreter's own.
RESERVED_FILES = 200


def upstream_of(mesh: Mesh, backend: Backend) -> Upstream:
    """A backend with its adapter, its connections and its drain policy.

    `drain.policy: auto` is `confirm` where the engine's adapter can, else `grace`.
    """
    engine = engine_named(backend.engine)
    drain = backend.drain
    policy: str = drain.policy
    if policy == "auto":
        policy = "confirm" if engine.confirm_path("") is not None else "grace"
    timeouts = mesh.timeouts
    return Upstream(
        name=backend.name,
        url=backend.url,
        engine=engine,
        pool=ConnectionPool(
            backend.url,
            connect_timeout_s=timeouts.connect,
            ssl=_tls(backend) if backend.url.startswith("https:") else None,
        ),
        drain=DrainSettings(
            policy=policy,
            grace_s=engine.drain_floor_s if drain.grace == "auto" else float(drain.grace),
            cleanup_s=timeouts.cleanup,
            overdue_s=drain.overdue,
        ),
        api_key=backend.api_key,
    )


def health_of(backend: Backend) -> HealthSettings:
    """The probe settings of a backend."""
    health = backend.health
    path = engine_named(backend.engine).health_path if health.path == "auto" else health.path
    return HealthSettings(path, health.interval, health.timeout, health.unhealthy_after, health.healthy_after)


def server_limits(mesh: Mesh) -> ServerLimits:
    """The bounds of the public listener. Each caller's connection may need one to a backend beside it."""
    limits = mesh.server.limits
    connections = limits.connections
    if connections == "auto":
        connections = max(64, (open_file_limit() - RESERVED_FILES) // 2)
    return ServerLimits(
        header_bytes=limits.header_bytes,
        header_timeout_s=limits.header_timeout,
        body_timeout_s=limits.body_timeout,
        keepalive_s=limits.keepalive,
        max_connections=int(connections),
        per_peer=limits.connections_per_peer,
        send_timeout_s=mesh.timeouts.send,
    )


def _tls(backend: Backend) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=backend.tls.ca)
    if not backend.tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
