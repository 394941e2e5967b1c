"""The one fact that is left of a request when it has ended (contract F3): names, times and sizes, never contents."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from inferencemesh.core.events import RequestEnded
from inferencemesh.core.outcome import Phase

if TYPE_CHECKING:
    from inferencemesh.runtime.exchange import Exchange


def ended_event(exchange: Exchange, cause: str, stage: str | None, now: float) -> RequestEnded:
    """The event of an exchange that has been settled; `now` is the loop's time in seconds."""
    request, attempt = exchange.request, exchange.attempt
    first = backend_first = usage = None
    if attempt is not None:
        usage = attempt.usage or attempt.tracker.usage
        first = attempt.first_content_at
        if first is not None and attempt.dispatched_at is not None:
            backend_first = first - attempt.dispatched_at
    return RequestEnded(
        at=time.time(),
        id=request.id,
        tenant=request.tenant,
        model=request.model,
        backend=attempt.upstream.name if attempt is not None else None,
        attempts=exchange.attempts,
        stream=exchange.stream,
        status=exchange.status,
        phase=exchange.phase,
        cause=cause,
        upstream_phase=attempt.phase if attempt is not None else Phase.BEFORE_HEADERS,
        wait_s=request.waited_s,
        first_content_s=None if first is None else first - request.arrived_at,
        backend_first_content_s=backend_first,
        duration_s=now - request.arrived_at,
        bytes_in=request.size_bytes,
        bytes_out=exchange.responder.bytes_out,
        events=attempt.tracker.events if attempt is not None else 0,
        tokens_in=usage.input_tokens if usage is not None else None,
        tokens_out=usage.output_tokens if usage is not None else None,
        notes=attempt.notes if attempt is not None else (),
        stage=stage,
        detail=exchange.detail,
        peer=exchange.responder.peer,
    )
