"""A model's effective settings, merged once at start so that the data path reads plain attributes.

Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferencemesh.runtime.relay import Plan

if TYPE_CHECKING:
    from inferencemesh.config.schema import Mesh


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """See mesh.yaml: `timeouts`, `retries`, `stream`, with the model's own overrides applied."""

    name: str
    upstream_name: str
    backends: tuple[str, ...]
    connect_s: float
    first_content_s: float
    idle_s: float
    total_s: float
    cleanup_s: float
    prefetch: str
    prefetch_max_s: float
    keepalive_s: float
    on_failure: str
    strict_marker: bool
    max_event_bytes: int
    retry_on: frozenset[str | int]
    _plans: dict[tuple[bool, int], Plan] = field(default_factory=dict, repr=False, compare=False)

    def plan(self, *, stream: bool, choices: int) -> Plan:
        """The settings of an attempt. One object for all requests of a kind; kinds are bounded by `n`'s own bound."""
        key = (stream, choices)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(
                stream=stream,
                choices=choices,
                prefetch=self.prefetch,
                prefetch_max_s=self.prefetch_max_s,
                first_content_s=self.first_content_s,
                idle_s=self.idle_s,
                total_s=self.total_s,
                max_event_bytes=self.max_event_bytes,
                strict_marker=self.strict_marker,
            )
        return plan


def settings_of(mesh: Mesh) -> dict[str, ModelSettings]:
    """Settings by every name a caller may use: models and their aliases."""
    result: dict[str, ModelSettings] = {}
    for model in mesh.models:
        timeouts = mesh.timeouts_for(model)
        stream = mesh.stream_for(model)
        retries = mesh.retries_for(model)
        settings = ModelSettings(
            name=model.name,
            upstream_name=model.upstream_name or model.name,
            backends=model.backends,
            connect_s=timeouts.connect,
            first_content_s=timeouts.first_content,
            idle_s=timeouts.idle,
            total_s=timeouts.total,
            cleanup_s=timeouts.cleanup,
            prefetch=stream.prefetch,
            prefetch_max_s=stream.prefetch_max,
            keepalive_s=stream.keepalive,
            on_failure=stream.on_failure,
            strict_marker=stream.strict_marker,
            max_event_bytes=stream.max_event,
            retry_on=frozenset(retries.on),
        )
        for name in (model.name, *model.aliases):
            result[name] = settings
    return result
