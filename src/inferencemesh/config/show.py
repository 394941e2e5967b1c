"""The effective configuration as YAML that loads again; secrets are masked."""

from __future__ import annotations

from typing import Any

import yaml

from inferencemesh.config.model import Mesh
from inferencemesh.config.section import Section
from inferencemesh.config.yamlmap import RESOLVERS


def as_document(mesh: Mesh) -> dict[str, Any]:
    """Every key with its value as a file would hold it; a model's overrides are shown whole."""
    document = _plain(mesh)
    for model, shown in zip(mesh.models, document["models"], strict=True):
        for key, effective in (
            ("timeouts", mesh.timeouts_for(model)),
            ("stream", mesh.stream_for(model)),
            ("queue", mesh.queue_for(model)),
            ("retries", mesh.retries_for(model)),
        ):
            if getattr(model, key) is None:
                del shown[key]
            else:
                shown[key] = _plain(effective)
        # These hold over all models, and a model may not repeat them.
        for key in ("max_waiting_total", "max_waiting_bytes"):
            shown.get("queue", {}).pop(key, None)
        shown.get("retries", {}).pop("budget", None)
    return document


def as_yaml(mesh: Mesh) -> str:
    """The effective configuration as YAML."""
    return yaml.dump(
        _escaped(as_document(mesh)),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )


class _Dumper(yaml.SafeDumper):
    """Quotes text that either YAML 1.1 or our reading would take for something else."""


for _first, _resolvers in RESOLVERS.items():
    for _tag, _pattern in _resolvers:
        _Dumper.add_implicit_resolver(_tag, _pattern, [_first])


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _plain(section: Section) -> dict[str, Any]:
    return section.model_dump(mode="json", by_alias=True)
