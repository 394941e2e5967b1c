"""The deterministic model server: stops generating in the turn in which it sees the close."""

from __future__ import annotations

import orjson

from inferencemesh.runtime.engines.openai import OpenAIEngine


class SimEngine(OpenAIEngine):
    """Like the generic one, with a health path of its own and a short floor."""

    name = "sim"
    health_path = "/health"
    drain_floor_s = 0.1
    slots_path = "/sim/state?requests=0"

    def slots(self, body: bytes) -> int:
        """As its state says."""
        return int(orjson.loads(body)["slots"])

    def confirm_path(self, attempt_id: str) -> str | None:
        """Its state, of one request."""
        return f"/sim/state?id={attempt_id}"

    def stopped(self, status: int, body: bytes, attempt_id: str, *, closed: bool) -> bool | None:
        """Neither running nor lingering, as its own record says; unknown and closed: it was never heard of."""
        if status != 200:
            return None
        record = orjson.loads(body)["requests"].get(attempt_id)
        if record is None:
            return True if closed else None
        return record["state"] not in ("running", "waiting") and not record["lingering"]

    def healthy(self, status: int) -> bool:
        """Only 200 is healthy."""
        return status == 200
