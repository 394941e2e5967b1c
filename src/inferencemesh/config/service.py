"""`coordination` between hosts, and `telemetry`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from inferencemesh.config.kinds import Choice, Duration, Flag, Number, Whole
from inferencemesh.config.section import Section
from inferencemesh.config.texts import Text, Url

CoordinationMode = Literal["none", "partition", "redis"]
OnLeaseLost = Literal["abort", "drain"]
LogFormat = Literal["auto", "human", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Partition(Section):
    """Which fixed part of each backend is ours."""

    index: Annotated[int, Whole()] = Field(default=0, description="Number of this host, from 0.")
    of: Annotated[int, Whole(minimum=1)] = Field(default=1, description="How many hosts there are.")


class Coordination(Section):
    """Several hosts in front of the same backends (contract E3)."""

    mode: Annotated[CoordinationMode, Choice(CoordinationMode)] = Field(
        default="none",
        description="`none`: this host is alone; `partition`: each has its fixed part; `redis`: leased parts.",
    )
    partition: Partition = Field(default=Partition(), description="Our fixed part.")
    url: Annotated[str, Url(("redis", "rediss"), credentials=True)] = Field(
        default="redis://127.0.0.1:6379/0", description="Redis or Valkey."
    )
    namespace: Annotated[
        str, Text(pattern=r"[A-Za-z0-9._:-]{1,64}", rule="must be 1 to 64 letters, digits or `._:-`")
    ] = Field(default="inferencemesh", description="Prefix of every key in the store.")
    lease_ttl: Annotated[float, Duration()] = Field(
        default=10.0, description="After so long without us our slots are dealt out anew."
    )
    on_lease_lost: Annotated[OnLeaseLost, Choice(OnLeaseLost)] = Field(
        default="abort", description="What happens to streams on leased slots when the lease is lost."
    )
    reserve: Annotated[float, Number(maximum=1)] = Field(
        default=0.1,
        description="Share of each backend's slots that is dealt out for good over `expected_hosts`, at least one slot "
        "each; each host may always use its own part, the rest is leased.",
    )
    expected_hosts: Annotated[int, Whole(minimum=1)] = Field(
        default=2, description="How many hosts share the reserve."
    )


class Log(Section):
    """The log, on standard output."""

    format: Annotated[LogFormat, Choice(LogFormat)] = Field(
        default="auto", description="`auto`: human on a terminal, JSON elsewhere."
    )
    level: Annotated[LogLevel, Choice(LogLevel)] = Field(
        default="info", description="The least level that is written."
    )


class Otlp(Section):
    """Traces over OTLP."""

    endpoint: Annotated[str, Url(("http", "https"))] | None = Field(
        default=None, description="Where traces go; null: nowhere."
    )
    sample: Annotated[float, Number(maximum=1)] = Field(
        default=0.1, description="Share of requests that is traced."
    )


class Telemetry(Section):
    """Log, metrics, traces."""

    log: Log = Field(default=Log(), description="The log.")
    otlp: Otlp = Field(default=Otlp(), description="Traces.")
    tenant_histograms: Annotated[bool, Flag()] = Field(
        default=False, description="Whether histograms carry the tenant."
    )
    buckets: dict[Annotated[str, Text()], tuple[Annotated[float, Number(positive=True)], ...]] = Field(
        default={}, description="Histogram name → its upper bounds in seconds, ascending."
    )
