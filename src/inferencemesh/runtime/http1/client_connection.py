"""One use of a connection to a backend: from `ConnectionPool.acquire` to the end of one response.

A handle of its own for each use, because a connection goes back to the pool by itself: what a former owner still
does with its handle then must not reach the next owner's response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferencemesh.runtime.http1.client_protocol import ClientProtocol
    from inferencemesh.runtime.http1.response import ResponseSink


class ClientConnection:
    """The owner's handle. Its user makes one request, or gives it back with `release`, or ends it.

    When the response is complete and the connection could be kept, it is the pool's again before `on_end` is
    called; every method then does nothing.
    """

    __slots__ = ("_bytes_in", "_protocol", "reused")

    def __init__(self, protocol: ClientProtocol, *, reused: bool) -> None:
        self._protocol: ClientProtocol | None = protocol
        self._bytes_in = 0
        self.reused = reused

    @property
    def bytes_in(self) -> int:
        """Bytes received in this use, heads and framing included."""
        protocol = self._protocol
        return self._bytes_in if protocol is None else protocol.bytes_in

    @property
    def closed(self) -> bool:
        """Whether the connection has ended, or is not this handle's any more."""
        protocol = self._protocol
        return protocol is None or protocol.closed

    @property
    def peer_closed(self) -> bool:
        """Whether the peer's own FIN or RST was seen: evidence that its HTTP layer has let go (contract B5)."""
        protocol = self._protocol
        return protocol is not None and protocol.peer_closed

    def request(self, head_and_body: bytes | Sequence[bytes], sink: ResponseSink) -> None:
        """Send a request that is framed already; `sink` takes the response.

        The sink is never called within this method. HEAD cannot be used: its response's length would be waited for.
        """
        protocol = self._protocol
        if protocol is None:
            raise RuntimeError("the connection was given back to its pool")
        protocol.request(head_and_body, sink)

    def pause(self) -> None:
        """Stop reading from the backend (contract A11). Idempotent."""
        if self._protocol is not None:
            self._protocol.pause()

    def resume(self) -> None:
        """Read again. Idempotent."""
        if self._protocol is not None:
            self._protocol.resume()

    def half_close(
        self, on_closed: Callable[[], None] | None = None, on_end: Callable[[], None] | None = None
    ) -> None:
        """Tell the backend to stop: our FIN, its further bytes discarded, the sink not called any more (contract B5).

        `on_closed()` is called once, when the peer has closed its side; at once if it has already. `on_end()` is
        called instead if the backend finishes its message after all. Neither is called after `abort`, nor when the
        connection ends by anything but the peer: that is no evidence. With either given, the caller bounds the wait
        and then aborts; with none the pool's sweep does.
        """
        if self._protocol is not None:
            self._protocol.half_close(on_closed, on_end)

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the peer closes its side; at once if it has. Dropped with the use otherwise."""
        if self._protocol is not None:
            self._protocol.add_close_callback(callback)

    def close(self) -> None:
        """End the connection; the sink is not called any more. Idempotent."""
        self.abort()

    def abort(self) -> None:
        """End the connection at once; the sink is not called any more. Idempotent."""
        if self._protocol is not None:
            self._protocol.abort()

    def release(self) -> None:
        """Give an acquired connection back that was not used after all. Ends it if a response is under way."""
        if self._protocol is not None:
            self._protocol.release()

    def detach(self, bytes_in: int) -> None:
        """Called by the pool: the use is over."""
        self._bytes_in = bytes_in
        self._protocol = None
