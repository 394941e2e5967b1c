"""`tenants` and `classes`: who calls, with which key and share, and how urgent their requests are."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from inferencemesh.auth.tenants import ANONYMOUS
from inferencemesh.config.backends import Name, Weight
from inferencemesh.config.kinds import Duration, Number, Whole
from inferencemesh.config.policies import Queue, Timeouts
from inferencemesh.config.section import Section
from inferencemesh.config.texts import Digest, Expiry, Text


class Key(Section):
    """One key of a tenant; two may be valid at once while they are rotated."""

    sha256: Annotated[str, Digest()] = Field(
        description="Lower-case hex SHA-256 of the key's bytes; `inferencemesh config hash-key` makes it."
    )
    expires: Annotated[datetime, Expiry()] | None = Field(
        default=None,
        description="Date (that day included, UTC) or timestamp from which it is refused; null: never.",
    )


class Rate(Section):
    """Bounds on a tenant over time."""

    requests_per_minute: Annotated[float, Number(positive=True)] | None = Field(
        default=None, description="Requests per minute."
    )
    tokens_per_minute: Annotated[float, Number(positive=True)] | None = Field(
        default=None, description="Tokens per minute."
    )


class Tenant(Section):
    """One tenant."""

    name: Name = Field(
        description="Its name in metrics and state. `anonymous` is the tenant of callers without a key."
    )
    keys: tuple[Key, ...] = Field(default=(), description="Its keys.")
    models: tuple[Annotated[str, Text()], ...] = Field(
        default=("*",),
        description="Models that it may use, by name or alias; `*`, `?` and `[…]` are wildcards.",
    )
    weight: Weight = Field(default=1.0, description="Its share when slots are contested.")
    reserved: Annotated[int, Whole()] = Field(
        default=0, description="Slots that it gets back at the next release when it needs them."
    )
    class_name: Name = Field(
        default="normal", alias="class", description="The most urgent class that it may ask for."
    )
    max_running: Annotated[int, Whole(minimum=1)] | None = Field(
        default=None, description="Slots that it may hold at once."
    )
    max_waiting: Annotated[int, Whole()] | None = Field(
        default=None, description="Waiters that it may have over all models."
    )
    rate: Rate = Field(default=Rate(), description="Bounds over time.")


class PriorityClass(Section):
    """One class; the first of the list is the most urgent (contract D6)."""

    name: Name = Field(description="What `x-mesh-class` says.")
    offset: Annotated[float, Duration(zero=True)] = Field(
        default=0.0,
        description="A request stands as if it had arrived so much later; only inside its tenant. The three classes "
        "that exist without any of your own have 0s, 5s and 30s.",
    )
    queue: Queue | None = Field(default=None, description="A line of its own.")
    timeouts: Timeouts | None = Field(default=None, description="Timeouts of its own.")
    max_running: Annotated[int, Whole(minimum=1)] | None = Field(
        default=None, description="Slots that it may hold at once."
    )


DEFAULT_CLASSES = (
    PriorityClass(name="high", offset=0.0),
    PriorityClass(name="normal", offset=5.0),
    PriorityClass(name="low", offset=30.0),
)

__all__ = ["ANONYMOUS", "DEFAULT_CLASSES", "Key", "PriorityClass", "Rate", "Tenant"]
