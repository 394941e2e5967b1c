"""The HTTP/1.1 client: `ConnectionPool.acquire` gives a `ClientConnection`, its `request` feeds a `ResponseSink`."""

from __future__ import annotations

from inferencemesh.runtime.http1.client_connection import ClientConnection
from inferencemesh.runtime.http1.lost import ConnectError, UpstreamLost
from inferencemesh.runtime.http1.pool import ConnectionPool
from inferencemesh.runtime.http1.response import ResponseSink

__all__ = ["ClientConnection", "ConnectError", "ConnectionPool", "ResponseSink", "UpstreamLost"]
