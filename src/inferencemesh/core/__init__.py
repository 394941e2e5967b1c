"""The rules: pure, synchronous state machines. No await, socket, clock, logging or third-party import."""
