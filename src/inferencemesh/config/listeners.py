"""The two ports: `server` and `admin`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from inferencemesh.config.kinds import Auto, Choice, Duration, Flag, Size, Whole
from inferencemesh.config.section import Section
from inferencemesh.config.texts import Host, Network, Secret, Text

ShutdownWaiters = Literal["serve", "refuse"]

Port = Annotated[int, Whole(maximum=65535)]
FilePath = Annotated[str, Text()]


class Cors(Section):
    """Answers to browsers of other origins."""

    allow_origins: tuple[Annotated[str, Text()], ...] = Field(
        default=(), description="Origins whose pages may call the public port."
    )


class ServerTls(Section):
    """TLS on the public port."""

    cert: FilePath | None = Field(default=None, description="File of the certificate chain (PEM).")
    key: FilePath | None = Field(default=None, description="File of the private key (PEM).")
    client_ca: FilePath | None = Field(
        default=None, description="File of the authorities whose client certificates are asked for."
    )


class ServerLimits(Section):
    """Bounds on what callers may make the gateway hold (contract A11, G2)."""

    connections: Annotated[int | Auto, Whole(minimum=1, auto=True)] = Field(
        default="auto", description="Open connections of callers; `auto`: from the open-file limit."
    )
    connections_per_peer: Annotated[int, Whole(minimum=1)] | None = Field(
        default=None, description="Open connections of one address; null: no bound of its own."
    )
    header_bytes: Annotated[int, Size(minimum=256)] = Field(
        default=32 * 1024, description="Size of a request's head."
    )
    body_bytes: Annotated[int, Size()] = Field(
        default=32 * 1024 * 1024, description="Size of a request's body."
    )
    buffered_bytes: Annotated[int, Size()] = Field(
        default=512 * 1024 * 1024,
        description="All bodies that are being read, waiting, or kept for a retry; beyond it reading pauses.",
    )
    header_timeout: Annotated[float, Duration()] = Field(
        default=10.0, description="For a request's head to arrive whole."
    )
    body_timeout: Annotated[float, Duration()] = Field(
        default=30.0, description="For a request's body to arrive whole."
    )
    keepalive: Annotated[float, Duration()] = Field(
        default=620.0,
        description="How long an idle connection stays open; longer than the load balancers in front.",
    )


class Server(Section):
    """The public port and the process."""

    host: Annotated[str, Host()] = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(default=8080, description="Port to listen on; 0 takes a free one.")
    workers: Annotated[int, Whole(minimum=1, maximum=1024)] = Field(
        default=1, description="Processes; slots stay exact over all of them (contract E2)."
    )
    lame_duck: Annotated[float, Duration(zero=True)] = Field(
        default=0.0,
        description="After SIGTERM: not ready, still answering (503) for so long; 5s to 15s behind a load balancer.",
    )
    shutdown_grace: Annotated[float, Duration(zero=True)] = Field(
        default=300.0, description="How long running streams may go on after SIGTERM."
    )
    shutdown_waiters: Annotated[ShutdownWaiters, Choice(ShutdownWaiters)] = Field(
        default="serve", description="Whether those who wait at SIGTERM are still served."
    )
    expose_backend: Annotated[bool, Flag()] = Field(
        default=False, description="Whether answers carry `x-mesh-backend`."
    )
    watch_config: Annotated[bool, Flag()] = Field(
        default=False, description="Whether a change of the file reloads it."
    )
    trust_forwarded: tuple[Annotated[str, Network()], ...] = Field(
        default=(), description="Addresses of proxies whose `X-Forwarded-*` are believed."
    )
    cors: Cors = Field(default=Cors(), description="Browsers of other origins.")
    tls: ServerTls = Field(default=ServerTls(), description="TLS on the public port.")
    limits: ServerLimits = Field(
        default=ServerLimits(), description="Bounds on what callers may make us hold."
    )


class Admin(Section):
    """The port of operators: metrics, state, dashboard."""

    host: Annotated[str, Host()] = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(default=8081, description="Port to listen on; 0 takes a free one.")
    token: Annotated[str, Secret()] | None = Field(
        default=None, description="Bearer token; required when the address is not loopback."
    )
