"""A model's effective settings, merged once at start so that the data path reads plain attributes.

Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferencemesh.config.policies import Timeouts, merged
from inferencemesh.runtime.relay import Plan

if TYPE_CHECKING:
    from inferencemesh.config.schema import Mesh, Model


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
    by_class: Mapping[str, ModelSettings] = field(
        default_factory=dict, repr=False
    )  # those with times of their own
    _plans: dict[tuple[bool, int], Plan] = field(default_factory=dict, repr=False, compare=False)

    def of_class(self, name: str) -> ModelSettings:
        """The settings of this class's requests."""
        return self.by_class.get(name, self) if self.by_class else self

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
        general = mesh.timeouts_for(model)
        by_class = {
            cls.name: _settings(mesh, model, merged(general, cls.timeouts), {})
            for cls in mesh.classes
            if cls.timeouts is not None
        }
        settings = _settings(mesh, model, general, by_class)
        for name in (model.name, *model.aliases):
            result[name] = settings
    return result


def _settings(
    mesh: Mesh, model: Model, timeouts: Timeouts, by_class: Mapping[str, ModelSettings]
) -> ModelSettings:
    stream = mesh.stream_for(model)
    retries = mesh.retries_for(model)
    return ModelSettings(
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
        by_class=by_class,
    )
