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

    def healthy(self, status: int) -> bool:
        """Only 200 is healthy."""
        return status == 200
