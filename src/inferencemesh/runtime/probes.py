"""Health probes: one task per backend, owned by `Probes`, awaited at its close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from inferencemesh.runtime.gate import Gate
from inferencemesh.runtime.http1.client import ClientConnection, ConnectError, UpstreamLost
from inferencemesh.runtime.upstream import Upstream

MAX_PROBE_BYTES = 1024 * 1024  # of a probe's answer; more is not a health answer


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """`backends[].health`; seconds. `path` None means no probes: the backend counts as up."""

    path: str | None
    interval_s: float
    timeout_s: float
    unhealthy_after: int
    healthy_after: int


class Fetch:
    """A small GET over a backend's own pool: a sink with one future."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self._status = 0
        self._chunks: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Keep the status."""
        self._status = status

    def on_body(self, chunk: bytes) -> None:
        """Gather, bounded."""
        self._size += len(chunk)
        if self._size > MAX_PROBE_BYTES:
            raise ValueError("the answer to a probe is too large")
        self._chunks.append(chunk)

    def on_read(self) -> None:
        """Nothing to do before the end."""

    def on_end(self) -> None:
        """Resolve."""
        if not self.done.done():
            self.done.set_result((self._status, b"".join(self._chunks)))

    def on_lost(self, lost: UpstreamLost) -> None:
        """Fail."""
        if not self.done.done():
            self.done.set_exception(lost)


async def fetch(upstream: Upstream, path: str, timeout_s: float) -> tuple[int, bytes]:
    """GET `path` from a backend within `timeout_s`.

    Raises:
        ConnectError, UpstreamLost, TimeoutError: it could not be had.
    """
    loop = asyncio.get_running_loop()
    conn: ClientConnection | None = None
    sink = Fetch(loop)
    finished = False
    try:
        async with asyncio.timeout(timeout_s):
            conn = await upstream.pool.acquire(timeout_s=timeout_s)
            conn.request(
                upstream.render(
                    b"GET", path, [(b"accept", b"*/*")], b"", attempt_id="mesh-probe", timeout_s=None
                ),
                sink,
            )
            result = await sink.done
            finished = True
            return result
    finally:
        if conn is not None and not finished:
            conn.abort()


class Probes:
    """Watches the backends; `changed` hears of every change (upstream, up, reason)."""

    def __init__(self, gate: Gate, changed: Callable[[Upstream, bool, str], None]) -> None:
        self._gate = gate
        self._changed = changed
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, upstreams: dict[str, Upstream], health: dict[str, HealthSettings]) -> None:
        """Begin to watch."""
        for name, upstream in upstreams.items():
            settings = health[name]
            if settings.path is not None:
                self._tasks.append(asyncio.create_task(self._watch(upstream, settings, settings.path)))

    async def _watch(self, upstream: Upstream, settings: HealthSettings, path: str) -> None:
        good = 0
        while True:
            reason = await self._probe(upstream, settings, path)
            if reason is None:
                good += 1
                upstream.failures = 0
                if not upstream.up and good >= settings.healthy_after:
                    self._set(upstream, up=True, reason="healthy")
            else:
                good = 0
                upstream.failures += 1
                if upstream.up and upstream.failures >= settings.unhealthy_after:
                    self._set(upstream, up=False, reason=reason)
            await asyncio.sleep(settings.interval_s)

    async def _probe(self, upstream: Upstream, settings: HealthSettings, path: str) -> str | None:
        try:
            status, _ = await fetch(upstream, path, settings.timeout_s)
        except TimeoutError:
            return f"no answer to {path} within {settings.timeout_s:g} s"
        except (ConnectError, UpstreamLost, OSError) as lost:
            return str(lost) or type(lost).__name__
        return None if upstream.engine.healthy(status) else f"{path} answered {status}"

    def _set(self, upstream: Upstream, *, up: bool, reason: str) -> None:
        upstream.up = up
        self._gate.set_up(upstream.name, up=up)
        self._changed(upstream, up, reason)

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
