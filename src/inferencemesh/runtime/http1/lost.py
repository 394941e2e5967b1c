"""How a connection to a backend fails: it cannot be made, or it ends before the response is complete."""

from __future__ import annotations


class ConnectError(OSError):
    """No connection to the backend; the message says to where and why. `timed_out` if it did not answer in time."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class UpstreamLost(Exception):  # noqa: N818 - the event's name; it is handed over more often than raised
    """The response ended before it was complete.

    `code` is `upstream_reset` (the connection ended), `upstream_protocol` (not HTTP/1.1, or beyond its bounds) or
    `internal` (the sink raised; the exception is `cause`).

    `peer_closed`: the peer's own FIN or RST was seen. False where we ended it or the network went silent: the
    backend may then go on working, and its slot is not free by this alone (contract B5).

    `unread`: the request may be sent again, whatever its method, because the peer cannot have read a byte of it.
    That is only claimed of a reused connection of which no byte of a response was seen, and only when either

    - the peer's FIN or RST lay in our socket before the first byte was written, so that nothing was written; or
    - all of the request was still in our own buffer when the peer's FIN came, and was dropped there.

    Once a byte is with the kernel it is false, although a server that closes an idle connection usually has not
    read it: a server that read the request and died looks the same from here, and a second generation is worse
    than an error.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        clean_eof: bool = False,
        peer_closed: bool = False,
        seen_bytes: int = 0,
        unread: bool = False,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.clean_eof = clean_eof  # by FIN, not by RST
        self.peer_closed = peer_closed
        self.seen_bytes = seen_bytes  # of this response, head included
        self.unread = unread
        self.cause = cause
