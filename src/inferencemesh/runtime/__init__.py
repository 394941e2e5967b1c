"""The asyncio shell: sockets, tasks and timers around the rules of `core`."""
