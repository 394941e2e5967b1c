"""`backends`: the model servers, and when each is believed to be well."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from inferencemesh.config.kinds import Auto, Choice, Duration, Flag, Number, Whole
from inferencemesh.config.section import Section
from inferencemesh.config.texts import Secret, Text, Url

EngineName = Literal[
    "auto", "vllm", "sglang", "llamacpp", "tgi", "ollama", "trtllm", "lmdeploy", "openai", "sim"
]
DrainPolicy = Literal["auto", "trust", "grace", "confirm", "worst_case"]

Name = Annotated[
    str, Text(pattern=r"[A-Za-z0-9._-]{1,64}", rule="must be 1 to 64 letters, digits, `.`, `_` or `-`")
]

# The range in which the arithmetic of shares stays exact enough.
Weight = Annotated[float, Number(minimum=1e-6, maximum=1e6)]


class Drain(Section):
    """When a slot whose request *we* ended is free again (contract B5)."""

    policy: Annotated[DrainPolicy, Choice(DrainPolicy)] = Field(
        default="auto",
        description="`trust`: at once; `grace`: some time after the peer has closed too; `confirm`: on the "
        "engine's own word; `worst_case`: when its answer ends, else `timeouts.total` after it was sent; `auto`: "
        "`confirm` where the engine can, else `grace`.",
    )
    grace: Annotated[float | Auto, Duration(zero=True, auto=True)] = Field(
        default="auto",
        description="Time after the peer has closed its side too; `auto`: the engine's own floor, 1s for `openai`.",
    )
    overdue: Annotated[float, Duration()] = Field(
        default=60.0, description="Unconfirmed for so long: counted, alarmed, the backend is marked degraded."
    )


class Health(Section):
    """Probes of one backend."""

    path: Annotated[
        str | Auto, Text(pattern=r"/[!-~]*", rule="must be a path that begins with `/`", auto=True)
    ] = Field(default="auto", description="What is asked for; `auto`: the engine's own.")
    interval: Annotated[float, Duration()] = Field(default=5.0, description="Time between two probes.")
    timeout: Annotated[float, Duration()] = Field(default=5.0, description="For a probe's answer.")
    unhealthy_after: Annotated[int, Whole(minimum=1)] = Field(
        default=3, description="Failed probes in a row that take it out."
    )
    healthy_after: Annotated[int, Whole(minimum=1)] = Field(
        default=1, description="Good probes in a row that bring it back."
    )


class Breaker(Section):
    """Takes a failing backend out for a while; never the last one of a model."""

    ratio: Annotated[float, Number(positive=True, maximum=1)] = Field(
        default=0.5, description="Share of failed requests that opens it."
    )
    min_requests: Annotated[int, Whole(minimum=1)] = Field(
        default=10, description="Requests in the window before it may open."
    )
    window: Annotated[float, Duration()] = Field(
        default=30.0, description="Time over which requests are counted."
    )
    open_for: Annotated[float, Duration()] = Field(
        default=10.0, description="How long it stays open before it tries again."
    )
    half_open: Annotated[int, Whole(minimum=1)] = Field(
        default=1, description="Requests that try the backend again."
    )


class BackendTls(Section):
    """TLS towards a backend with an `https` URL."""

    verify: Annotated[bool, Flag()] = Field(
        default=True, description="Whether the backend's certificate is checked."
    )
    ca: Annotated[str, Text()] | None = Field(
        default=None,
        description="File of the authorities that are believed (PEM); null: those of the system.",
    )


class Backend(Section):
    """One model server."""

    name: Name = Field(description="Its name in metrics, state and `models[].backends`.")
    url: Annotated[str, Url(("http", "https"), strip="/v1")] = Field(
        description="Where it answers, without `/v1` (taken off if written)."
    )
    engine: Annotated[EngineName, Choice(EngineName)] = Field(
        default="auto",
        description="What kind of server it is; `auto`: the generic `openai` where nothing better is known.",
    )
    slots: Annotated[int | Auto, Whole(minimum=1, maximum=1_000_000, auto=True)] = Field(
        default="auto",
        description="How many sequences it may run for us at once; `auto`: what the engine reports. An engine that "
        "reports none needs a number.",
    )
    tokens: Annotated[int, Whole(minimum=1)] | None = Field(
        default=None, description="Bound on prompt + requested output tokens in flight, beside slots."
    )
    api_key: Annotated[str, Secret()] | None = Field(
        default=None, description="Sent to it as `Authorization: Bearer`; callers' keys never are."
    )
    weight: Weight = Field(default=1.0, description="Its share among the backends of a model.")
    drain: Drain = Field(default=Drain(), description="When a slot whose request we ended is free again.")
    health: Health = Field(default=Health(), description="Probes.")
    breaker: Breaker = Field(default=Breaker(), description="Takes a failing backend out for a while.")
    tls: BackendTls = Field(default=BackendTls(), description="TLS towards it.")
