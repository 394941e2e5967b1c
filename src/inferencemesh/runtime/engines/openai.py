"""Any OpenAI-compatible server: nothing is assumed beyond HTTP and the API."""

from __future__ import annotations

from inferencemesh.wire.tracker import InBandError


class OpenAIEngine:
    """The generic adapter: only 429 means “full”, and one second after the peer's close it has stopped."""

    name = "openai"
    health_path = "/v1/models"
    drain_floor_s = 1.0
    slots_path: str | None = None

    def slots(self, body: bytes) -> int:
        """Nothing in the API tells it."""
        raise ValueError("the API does not tell slots")

    def confirm_path(self, attempt_id: str) -> str | None:
        """Nothing in the API tells it."""
        return None

    def stopped(self, status: int, body: bytes, attempt_id: str, *, closed: bool) -> bool | None:
        """Nothing in the API tells it."""
        return None

    def healthy(self, status: int) -> bool:
        """Any answer below 500 says that its HTTP layer lives; it may ask for a key that probes do not send."""
        return status < 500

    def is_full(self, status: int, error: InBandError | None) -> bool:
        """429 as a status, or as the status that an in-band error names."""
        return status == 429 or (error is not None and error.status == 429)
