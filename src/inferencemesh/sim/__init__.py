"""The deterministic, fault-scriptable model server."""
