"""Values that ask for behaviour which this release does not have. They are refused, never ignored.

One row per key; building something deletes its row. Values equal to what the gateway always does load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from inferencemesh.config.model import Mesh
from inferencemesh.config.problems import Path
from inferencemesh.config.section import Section


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A key (lists marked with `[]`), which of its values load, and what to write instead of the others."""

    path: str
    built: Callable[[Any], bool]
    instead: str


def _only(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


def _empty(value: Any) -> bool:
    return not value


CONFIRMING = ("sim",)  # engines whose adapter can ask whether an attempt has stopped

UNBUILT: tuple[Unbuilt, ...] = (
    Unbuilt("server.workers", _only(1), "write 1"),
    Unbuilt("server.watch_config", _only(False), "write false and restart the gateway after a change"),
    Unbuilt("server.trust_forwarded", _empty, "write []"),
    Unbuilt("server.cors.allow_origins", _empty, "write [] and let a proxy in front answer browsers"),
    Unbuilt("server.tls.cert", _only(None), "write null and end TLS in a proxy in front"),
    Unbuilt("server.tls.key", _only(None), "write null and end TLS in a proxy in front"),
    Unbuilt(
        "server.tls.client_ca", _only(None), "write null and check client certificates in a proxy in front"
    ),
    Unbuilt(
        "backends[].engine",
        _only("auto", "openai", "sim"),
        "write `openai` and give `slots` the number that the engine was started with",
    ),
    Unbuilt("backends[].tokens", _only(None), "write null and bound the work by `slots`"),
    Unbuilt("models[].routing", _only("least_busy", "round_robin"), "write `least_busy` or `round_robin`"),
    Unbuilt("models[].fallbacks", _empty, "write [] and give the model more backends"),
    Unbuilt(
        "tenants[].rate.requests_per_minute", _only(None), "write null and bound the tenant by `max_running`"
    ),
    Unbuilt(
        "tenants[].rate.tokens_per_minute", _only(None), "write null and bound the tenant by `max_running`"
    ),
    Unbuilt("admission.adaptive.enabled", _only(False), "write false and set `slots` by hand"),
    Unbuilt("stream.usage", _only("observe"), "write `observe`; callers may ask with `stream_options`"),
    Unbuilt(
        "models[].stream.usage", _only("observe"), "write `observe`; callers may ask with `stream_options`"
    ),
    Unbuilt(
        "coordination.mode",
        _only("none"),
        "write `none` and divide each backend's `slots` over the gateways by hand",
    ),
    Unbuilt("telemetry.otlp.endpoint", _only(None), "write null; metrics and logs are there"),
    Unbuilt("telemetry.tenant_histograms", _only(False), "write false"),
    Unbuilt("telemetry.buckets", _empty, "write {}"),
)


def refused(mesh: Mesh) -> Iterator[tuple[Path, str]]:
    """Every value of `mesh` that asks for what is not built, with the message."""
    for row in UNBUILT:
        for path, value in _values(mesh, row.path.split("."), ()):
            if not row.built(value):
                asked = f"`{_written(value)}`" if isinstance(value, str | int | float) else "this"
                yield path, f"{asked} asks for what this release does not do yet; {row.instead}"
    yield from _same_for_all(mesh)


def _written(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _same_for_all(mesh: Mesh) -> Iterator[tuple[Path, str]]:
    """What may be written in several places, but in this release has one value over all of them."""
    for i, backend in enumerate(mesh.backends):
        if backend.drain.policy == "confirm" and backend.engine not in CONFIRMING:
            message = (
                f"`confirm` asks for what this release does not do yet: the engine `{backend.engine}` "
                "cannot be asked whether it has stopped; write `grace` or `worst_case`"
            )
            yield ("backends", i, "drain", "policy"), message
        if backend.breaker != mesh.backends[0].breaker:
            name = mesh.backends[0].name
            yield (
                ("backends", i, "breaker"),
                f"differs from that of `{name}`: this release has one breaker setting for all; write the same",
            )
    for i, model in enumerate(mesh.models):
        timeouts, retries = mesh.timeouts_for(model), mesh.retries_for(model)
        for home, key, differs in (
            ("timeouts", "send", timeouts.send != mesh.timeouts.send),
            ("timeouts", "cleanup", timeouts.cleanup != mesh.timeouts.cleanup),
            ("retries", "attempts", retries.attempts != mesh.retries.attempts),
        ):
            if differs:
                message = f"differs from `{home}.{key}`: this release has one for all models; write it there"
                yield ("models", i, home, key), message
        if timeouts.connect > mesh.timeouts.connect:
            message = "is longer than `timeouts.connect`: in this release a model can only shorten it"
            yield ("models", i, "timeouts", "connect"), message
    for i, cls in enumerate(mesh.classes):
        if cls.timeouts is not None:
            for key in ("send", "cleanup", "connect"):
                if key in cls.timeouts.model_fields_set and getattr(cls.timeouts, key) != getattr(
                    mesh.timeouts, key
                ):
                    message = (
                        f"differs from `timeouts.{key}`: this release has one for all classes; write it there"
                    )
                    yield ("classes", i, "timeouts", key), message


def _values(node: Any, keys: list[str], path: Path) -> Iterator[tuple[Path, Any]]:
    if not keys:
        yield path, node
        return
    if not isinstance(node, Section):
        return  # an override that was not written
    key = keys[0].removesuffix("[]")
    name = next(n for n, field in type(node).model_fields.items() if (field.alias or n) == key)
    value = getattr(node, name)
    if keys[0].endswith("[]"):
        for i, item in enumerate(value):
            yield from _values(item, keys[1:], (*path, key, i))
    else:
        yield from _values(value, keys[1:], (*path, key))
