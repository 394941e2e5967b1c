"""Events and a snapshot to fold and to show."""

from __future__ import annotations

from typing import Any

from inferencemesh.core.events import RequestEnded, RequestRefused
from inferencemesh.core.outcome import Phase
from inferencemesh.core.snapshot import BackendView, LineView, Snapshot, TenantView, Totals

_ENDED: dict[str, Any] = {
    "at": 1_790_000_000.25,
    "id": "req-1",
    "tenant": "acme",
    "model": "llama-3",
    "backend": "gpu-a",
    "attempts": 1,
    "stream": True,
    "status": 200,
    "phase": Phase.COMPLETE,
    "cause": "ok",
    "upstream_phase": Phase.COMPLETE,
    "wait_s": 0.012,
    "first_content_s": 0.2,
    "backend_first_content_s": 0.18,
    "duration_s": 2.5,
    "bytes_in": 120,
    "bytes_out": 4096,
    "events": 50,
    "tokens_in": 12,
    "tokens_out": 48,
}
ENDED = RequestEnded(**_ENDED)
REFUSED = RequestRefused(
    at=1_790_000_000.5,
    id="req-2",
    tenant="acme",
    model="llama-3",
    code="queue_full",
    status=503,
    duration_s=0.0004,
)


def ended(**changes: Any) -> RequestEnded:
    return RequestEnded(**(_ENDED | changes))


def refused(**changes: Any) -> RequestRefused:
    return REFUSED._replace(**changes)


def snapshot() -> Snapshot:
    """It adds up. One backend is believed smaller than it is, one was shrunk below what it holds."""
    return Snapshot(
        at=1000.0,
        backends=(
            BackendView("gpu-a", 8, 6, 1, 4, 1, True, False, "closed", 1.25),
            BackendView("gpu-b", 2, 2, 0, 2, 1, False, True, "open", 0.5),
        ),
        lines=(LineView("llama-3", 3, 2.5, {"acme": 2, "globex": 1}, 16), LineView("embed", 0, 0.0, {}, 4)),
        tenants=(
            TenantView("acme", running=4, waiting=2, service=12.5, draining=1, weight=2.0),
            TenantView("globex", running=2, waiting=1, service=3.25, draining=1),
        ),
        totals=Totals(
            accepted=50,
            completed=30,
            failed=4,
            cancelled=5,
            expired=2,
            refused=976,
            running=6,
            waiting=3,
            grants=47,
            settled=39,
            waiting_bytes=3072,
        ),
    )
