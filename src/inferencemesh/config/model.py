"""The whole configuration, and what the parts of the gateway ask it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from inferencemesh.auth.keys import KeyEntry, KeyRing
from inferencemesh.auth.tenants import Tenant as AuthTenant
from inferencemesh.config.backends import Backend, Name
from inferencemesh.config.kinds import Choice
from inferencemesh.config.listeners import Admin, Server
from inferencemesh.config.policies import Admission, Queue, Retries, Stream, Timeouts, merged
from inferencemesh.config.section import Section
from inferencemesh.config.service import Coordination, Telemetry
from inferencemesh.config.tenancy import ANONYMOUS, DEFAULT_CLASSES, PriorityClass, Tenant
from inferencemesh.config.texts import Text
from inferencemesh.core.fairness import policy_of
from inferencemesh.core.model import (
    BackendSpec,
    BreakerSpec,
    ClassSpec,
    FairnessSpec,
    Limits,
    ModelSpec,
    RetrySpec,
    TenantSpec,
)

Routing = Literal["least_busy", "round_robin", "prefix"]
AnonymousPolicy = Literal["auto", "allow", "deny"]

MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,127}"

ModelName = Annotated[
    str,
    Text(
        pattern=MODEL_NAME,
        rule="must be 1 to 128 letters, digits or `._/:@-`, and begin with a letter or digit",
    ),
]


@dataclass(frozen=True, slots=True)
class CoreInputs:
    """What `core.admission.Admission` is built from: its positional arguments, and what goes by keyword."""

    backends: tuple[BackendSpec, ...]
    models: tuple[ModelSpec, ...]
    tenants: tuple[TenantSpec, ...]
    limits: Limits
    breaker: BreakerSpec
    retry: RetrySpec
    fairness: FairnessSpec
    classes: tuple[ClassSpec, ...]

    @property
    def args(self) -> tuple[tuple[BackendSpec, ...], tuple[ModelSpec, ...], tuple[TenantSpec, ...], Limits]:
        """Backends, models, tenants, limits."""
        return self.backends, self.models, self.tenants, self.limits

    @property
    def options(self) -> dict[str, Any]:
        """What else belongs to one admission; `charge` is a new one each time."""
        return {
            "breaker": self.breaker,
            "retry": self.retry,
            "charge": policy_of(self.fairness),
            "classes": self.classes,
            "floor": self.fairness.floor if self.fairness.strict else None,
        }


class Model(Section):
    """A name that callers ask for, and the backends that serve it."""

    name: ModelName = Field(description="What callers write in `model`.")
    backends: tuple[Name, ...] = Field(description="Names of the backends that serve it.")
    upstream_name: Annotated[str, Text()] | None = Field(
        default=None, description="The name the backend knows it by; null: the same."
    )
    aliases: tuple[ModelName, ...] = Field(default=(), description="Other names that callers may write.")
    routing: Annotated[Routing, Choice(Routing)] = Field(
        default="least_busy", description="Which of its backends with a free slot is taken."
    )
    fallbacks: tuple[ModelName, ...] = Field(
        default=(), description="Other models, tried only before any output."
    )
    timeouts: Timeouts | None = Field(
        default=None, description="Keys of `timeouts` that differ for this model."
    )
    queue: Queue | None = Field(
        default=None, description="Keys of `admission.queue` that differ for this model."
    )
    retries: Retries | None = Field(default=None, description="Keys of `retries` that differ for this model.")
    stream: Stream | None = Field(default=None, description="Keys of `stream` that differ for this model.")


class Mesh(Section):
    """The configuration of one gateway. Only `backends` is required."""

    server: Server = Field(default=Server(), description="The public port and the process.")
    admin: Admin = Field(default=Admin(), description="The port of operators.")
    backends: tuple[Backend, ...] = Field(description="The model servers.")
    models: tuple[Model, ...] = Field(
        default=(), description="What callers may ask for; none: one model per backend, of its name."
    )
    admission: Admission = Field(
        default=Admission(), description="How much work is accepted, and who is next."
    )
    timeouts: Timeouts = Field(
        default=Timeouts(), description="Limits of time; a model may override any of them."
    )
    retries: Retries = Field(
        default=Retries(), description="Another attempt before any output; a model may override."
    )
    stream: Stream = Field(
        default=Stream(), description="What a caller of a stream may believe; a model may override."
    )
    tenants: tuple[Tenant, ...] = Field(
        default=(), description="Who may call; none: everybody is the tenant `anonymous`, keys are ignored."
    )
    anonymous: Annotated[AnonymousPolicy, Choice(AnonymousPolicy)] = Field(
        default="auto",
        description="Callers without a key; `auto`: allowed while no tenants are configured, else denied.",
    )
    classes: tuple[PriorityClass, ...] = Field(
        default=DEFAULT_CLASSES, description="How urgent requests are; the first is the most urgent."
    )
    coordination: Coordination = Field(
        default=Coordination(), description="Several hosts in front of the same backends."
    )
    telemetry: Telemetry = Field(default=Telemetry(), description="Log, metrics, traces.")

    @model_validator(mode="after")
    def _one_model_per_backend(self) -> Self:
        if not self.models:
            # Past the validation of `Model`, so that a bad name is reported where it was written: at the backend.
            # No fields set: nobody wrote them.
            models = tuple(
                Model.model_construct(set(), name=b.name, backends=(b.name,)) for b in self.backends
            )
            object.__setattr__(self, "models", models)
        return self

    # --- who and what ---------------------------------------------------------------------------------------

    @cached_property
    def _model_by_name(self) -> dict[str, Model]:
        found: dict[str, Model] = {}
        for model in self.models:
            for name in (model.name, *model.aliases):
                found[name] = model
        return found

    def model_named(self, name: str) -> Model | None:
        """The model of this name or alias."""
        return self._model_by_name.get(name)

    def backend_named(self, name: str) -> Backend | None:
        """The backend of this name."""
        return next((backend for backend in self.backends if backend.name == name), None)

    def class_named(self, name: str) -> PriorityClass | None:
        """The class of this name."""
        return next((cls for cls in self.classes if cls.name == name), None)

    @property
    def anonymous_allowed(self) -> bool:
        """Whether a caller without a key is served."""
        return self.anonymous == "allow" or (self.anonymous == "auto" and not self.tenants)

    @cached_property
    def served_tenants(self) -> tuple[Tenant, ...]:
        """The configured tenants, and `anonymous` where it is allowed.

        A tenant that is configured under the name `anonymous` sets the limits of callers without a key.
        """
        if not self.anonymous_allowed or any(tenant.name == ANONYMOUS for tenant in self.tenants):
            return self.tenants
        names = [cls.name for cls in self.classes]
        urgent = "normal" if "normal" in names else names[0]
        return (*self.tenants, Tenant.model_validate({"name": ANONYMOUS, "class": urgent}))

    # --- what holds for one model ---------------------------------------------------------------------------

    def timeouts_for(self, model: Model) -> Timeouts:
        """`timeouts`, with what the model overrides."""
        return merged(self.timeouts, model.timeouts)

    def queue_for(self, model: Model) -> Queue:
        """`admission.queue`, with what the model overrides."""
        return merged(self.admission.queue, model.queue)

    def retries_for(self, model: Model) -> Retries:
        """`retries`, with what the model overrides."""
        return merged(self.retries, model.retries)

    def stream_for(self, model: Model) -> Stream:
        """`stream`, with what the model overrides."""
        return merged(self.stream, model.stream)

    # --- what admission is told -----------------------------------------------------------------------------

    def to_core(self, slots: Mapping[str, int] | None = None) -> CoreInputs:
        """The inputs of `core.admission`. `slots` holds what was found out for backends with `slots: auto`.

        Raises:
            ValueError: a backend with `slots: auto` is not in `slots`.

        """
        queue, fairness = self.admission.queue, self.admission.fairness
        breaker = self.backends[0].breaker  # the same for all: see `unbuilt`
        return CoreInputs(
            backends=tuple(BackendSpec(b.name, _slots_of(b, slots or {}), b.weight) for b in self.backends),
            models=tuple(self._model_spec(model) for model in self.models),
            tenants=tuple(
                TenantSpec(t.name, t.weight, t.max_running, t.max_waiting, t.reserved)
                for t in self.served_tenants
            ),
            limits=Limits(
                max_waiting_total=queue.max_waiting_total,
                max_waiting_bytes=queue.max_waiting_bytes,
                max_running=self.admission.max_running,
            ),
            breaker=BreakerSpec(
                ratio=breaker.ratio,
                min_requests=breaker.min_requests,
                window_s=breaker.window,
                open_for_s=breaker.open_for,
                half_open=breaker.half_open,
            ),
            retry=RetrySpec(attempts=self.retries.attempts, budget=self.retries.budget),
            fairness=FairnessSpec(
                fairness.policy,
                fairness.unit,
                fairness.input_token_weight,
                fairness.output_token_weight,
                limit_s=max(self._longest_s(model) for model in self.models),
                strict=fairness.strict,
                floor=fairness.floor,
            ),
            classes=tuple(ClassSpec(cls.name, cls.max_running) for cls in self.classes),
        )

    def key_ring(self) -> KeyRing:
        """Who callers are, by their keys."""
        names = [(model.name, *model.aliases) for model in self.models]
        offsets_s = {cls.name: cls.offset for cls in self.classes}
        tenants = {
            tenant.name: AuthTenant(tenant.name, tenant.models, tenant.class_name, offsets_s).knowing(names)
            for tenant in self.served_tenants
        }
        keys = [
            KeyEntry(key.sha256, tenants[tenant.name], key.expires.timestamp() if key.expires else None)
            for tenant in self.tenants
            for key in tenant.keys
        ]
        anonymous = tenants.get(ANONYMOUS) if self.anonymous_allowed else None
        return KeyRing(keys, anonymous=anonymous, open_to_all=not self.tenants)

    def _longest_s(self, model: Model) -> float:
        """The longest that a request for `model` may take, of whatever class."""
        general = self.timeouts_for(model)
        return max(general.total, *(merged(general, cls.timeouts).total for cls in self.classes))

    def _model_spec(self, model: Model) -> ModelSpec:
        general = self.queue_for(model)
        by_class = tuple(
            (cls.name, _line_spec(model, merged(general, cls.queue)))
            for cls in self.classes
            if cls.queue is not None
        )
        return replace(_line_spec(model, general), by_class=by_class)

    # --- without a file -------------------------------------------------------------------------------------

    @classmethod
    def from_backends(
        cls,
        urls: Sequence[str],
        *,
        slots: int | Literal["auto"] = "auto",
        models: Mapping[str, Iterable[str]] | None = None,
        **sections: Any,
    ) -> Self:
        """A configuration for `serve --backend URL`. Backends are named after host and port.

        `models` maps each model to the URLs that serve it; without it there is one model per backend. `sections`
        are further sections as the file would hold them (`server={"port": 9000}`). The result is checked like a
        file.

        Raises:
            ConfigError: a URL or section is not usable.

        """
        from inferencemesh.config.load import from_document  # the loader is built on this module

        names = _backend_names(urls)
        data: dict[str, Any] = {
            "backends": [
                {"name": name, "url": url, "slots": slots} for name, url in zip(names, urls, strict=True)
            ],
            **sections,
        }
        if models is not None:
            by_url = dict(zip(urls, names, strict=True))
            data["models"] = [
                {"name": model, "backends": [by_url[url] for url in of]} for model, of in models.items()
            ]
        mesh = from_document(data)
        return mesh if isinstance(mesh, cls) else cls.model_validate(data)


def _slots_of(backend: Backend, found: Mapping[str, int]) -> int:
    if isinstance(backend.slots, int):
        return backend.slots
    if backend.name not in found:
        raise ValueError(f"backend {backend.name}: `slots: auto` has not been resolved")
    return found[backend.name]


def _backend_names(urls: Sequence[str]) -> list[str]:
    names: list[str] = []
    for url in urls:
        try:
            netloc = urlsplit(url if "//" in url else f"//{url}").netloc.rpartition("@")[2]
        except ValueError:
            netloc = ""
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", netloc).strip("-._")[:56] or "backend"
        name, count = base, 2
        while name in names:
            name, count = f"{base}-{count}", count + 1
        names.append(name)
    return names


def is_loopback(host: str) -> bool:
    """Whether a listener on this address is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _line_spec(model: Model, queue: Queue) -> ModelSpec:
    return ModelSpec(
        name=model.name,
        backends=model.backends,
        max_waiting=None if queue.max_waiting == "auto" else queue.max_waiting,
        wait_budget_s=queue.wait_budget,
        max_waiting_per_tenant=(
            None if queue.max_waiting_per_tenant == "auto" else queue.max_waiting_per_tenant
        ),
        queue_timeout_s=queue.timeout,
        refuse_hopeless=queue.refuse_hopeless,
        routing=model.routing,
    )
