"""How work is admitted, timed, retried and relayed. Four of these a model may override in part.

An override is the same class: the keys that were written (`model_fields_set`) replace the general ones.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field

from inferencemesh.config.kinds import Auto, Choice, Duration, Flag, Number, RetryReason, Size, Whole
from inferencemesh.config.section import Section

OverloadStatus = Literal[503, 429]
FairnessPolicy = Literal["sfq", "slots", "fifo"]
FairnessUnit = Literal["requests", "slot_seconds", "tokens"]
Prefetch = Literal["off", "first_event", "first_content"]
OnFailure = Literal["event", "event_then_cut"]
UsagePolicy = Literal["observe", "inject"]

AnySection = TypeVar("AnySection", bound=Section)


def merged(general: AnySection, override: AnySection | None) -> AnySection:
    """`general` with the keys that were written in `override`."""
    if override is None:
        return general
    return general.model_copy(update={name: getattr(override, name) for name in override.model_fields_set})


class Queue(Section):
    """The line of one model, and the bounds over all lines (contract A2, A3)."""

    max_waiting: Annotated[int | Auto, Whole(auto=True)] = Field(
        default="auto",
        description="Waiters per model; `auto`: slots x `wait_budget` / mean service time, within [1, 4 x slots]; "
        "0: refuse at once.",
    )
    wait_budget: Annotated[float, Duration()] = Field(
        default=5.0, description="The wait that `max_waiting: auto` aims at for the last in the line."
    )
    max_waiting_per_tenant: Annotated[int | Auto, Whole(auto=True)] = Field(
        default="auto",
        description="Waiters of one tenant per model; `auto`: the whole line while alone; when contested, displacement "
        "(contract D8).",
    )
    max_waiting_total: Annotated[int, Whole()] = Field(default=10000, description="Waiters over all models.")
    max_waiting_bytes: Annotated[int, Size(minimum=0)] = Field(
        default=256 * 1024 * 1024, description="Bodies of all waiters together."
    )
    timeout: Annotated[float, Duration()] = Field(default=10.0, description="The longest wait for a slot.")
    refuse_hopeless: Annotated[bool, Flag()] = Field(
        default=True,
        description="Whether a request that cannot get a slot before its deadline is refused at once (contract A8).",
    )


class Fairness(Section):
    """How tenants share the slots (contract D3)."""

    policy: Annotated[FairnessPolicy, Choice(FairnessPolicy)] = Field(
        default="sfq",
        description="Start-time fair queueing by weight, fewest slots first, or order of arrival.",
    )
    unit: Annotated[FairnessUnit, Choice(FairnessUnit)] = Field(
        default="slot_seconds", description="What is shared in proportion to the weights."
    )
    strict: Annotated[bool, Flag()] = Field(
        default=False,
        description="Whether a more urgent class goes first over all tenants; `floor` holds.",
    )
    floor: Annotated[float, Number(positive=True, maximum=1)] = Field(
        default=0.05,
        description="With `strict`: the part of grants that each class gets while it waits, whatever is more urgent; "
        "at most 1 / classes. Without `strict` it has no effect.",
    )
    input_token_weight: Annotated[float, Number()] = Field(
        default=1.0, description="Cost of a prompt token (`unit: tokens`)."
    )
    output_token_weight: Annotated[float, Number()] = Field(
        default=2.0, description="Cost of an output token (`unit: tokens`)."
    )


class Adaptive(Section):
    """Learning a backend's limit below its slots."""

    enabled: Annotated[bool, Flag()] = Field(default=False, description="Whether the limit is learned.")
    min: Annotated[int, Whole(minimum=1)] = Field(
        default=1, description="The least that the limit may fall to."
    )


class Admission(Section):
    """How much work is accepted, and who is next."""

    max_running: Annotated[int, Whole(minimum=1)] | None = Field(
        default=None, description="Running requests over all backends; null: the sum of their slots."
    )
    overload_status: Annotated[OverloadStatus, Choice(OverloadStatus)] = Field(
        default=503, description="Status of refusals by the service's own limits."
    )
    queue: Queue = Field(default=Queue(), description="The lines.")
    fairness: Fairness = Field(default=Fairness(), description="How tenants share.")
    adaptive: Adaptive = Field(default=Adaptive(), description="Learning a limit.")


class Timeouts(Section):
    """Each a limit and a cause of its own (contract C7)."""

    connect: Annotated[float, Duration()] = Field(default=2.0, description="For a connection to the backend.")
    first_content: Annotated[float, Duration()] = Field(
        default=120.0,
        description="From dispatch to the first content of a stream; per attempt; streams only.",
    )
    idle: Annotated[float, Duration()] = Field(
        default=60.0, description="Between two reads of a started answer."
    )
    total: Annotated[float, Duration()] = Field(
        default=600.0,
        description="The end-to-end deadline, waiting included; a caller may shorten it (contract A7).",
    )
    send: Annotated[float, Duration()] = Field(default=30.0, description="For a reader that takes nothing.")
    cleanup: Annotated[float, Duration()] = Field(
        default=5.0, description="For cleanup that outlives its request (contract B3)."
    )


class Retries(Section):
    """Another attempt before any output; “full” is not one (contract A9, B6)."""

    attempts: Annotated[int, Whole(minimum=1, maximum=100)] = Field(
        default=2, description="Per request, the first included."
    )
    budget: Annotated[float, Number(maximum=1)] = Field(
        default=0.1, description="Retries per request over all requests."
    )
    on: tuple[Annotated[str | int, RetryReason()], ...] = Field(
        default=("connect", 502, 503),
        description="What is tried again: `connect`, or a status of the backend.",
    )


class Stream(Section):
    """What a caller of a stream may believe (contract C)."""

    prefetch: Annotated[Prefetch, Choice(Prefetch)] = Field(
        default="first_content", description="What is awaited before the response starts (contract C1)."
    )
    prefetch_max: Annotated[float, Duration()] = Field(
        default=15.0, description="From the upstream's head; then the head goes out anyway."
    )
    keepalive: Annotated[float, Duration(zero=True)] = Field(
        default=15.0, description="Time between comment lines in a silent, started stream; 0: none."
    )
    on_failure: Annotated[OnFailure, Choice(OnFailure)] = Field(
        default="event", description="How a started stream ends when it fails (contract C2)."
    )
    strict_marker: Annotated[bool, Flag()] = Field(
        default=False, description="Whether a finish_reason without `[DONE]` is a failure too (contract C3)."
    )
    max_event: Annotated[int, Size(minimum=1024)] = Field(
        default=4 * 1024 * 1024, description="Size of one event (contract C6)."
    )
    usage: Annotated[UsagePolicy, Choice(UsagePolicy)] = Field(
        default="observe", description="Whether usage is only read, or also asked for."
    )
