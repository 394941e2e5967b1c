"""The deterministic, fault-scriptable model server."""

DEFAULT_MODEL = "demo"
DEFAULT_SLOTS = 8
