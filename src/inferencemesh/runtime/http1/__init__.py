"""HTTP/1.1 endpoints of the data path: asyncio protocols on llhttp (httptools).

Server: `server.HttpServer` and what passes between it and the `App` on it. Client: `client.ConnectionPool`.
"""

from __future__ import annotations

from inferencemesh.runtime.http1.client import (
    ClientConnection,
    ConnectError,
    ConnectionPool,
    ResponseSink,
    UpstreamLost,
)
from inferencemesh.runtime.http1.server import (
    Answer,
    App,
    BodyPlan,
    ByteBudget,
    HttpServer,
    IncomingRequest,
    Responder,
    ServerLimits,
)

__all__ = [
    "Answer",
    "App",
    "BodyPlan",
    "ByteBudget",
    "ClientConnection",
    "ConnectError",
    "ConnectionPool",
    "HttpServer",
    "IncomingRequest",
    "Responder",
    "ResponseSink",
    "ServerLimits",
    "UpstreamLost",
]
