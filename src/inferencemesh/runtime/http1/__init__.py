"""HTTP/1.1 endpoints of the data path: asyncio protocols on llhttp (httptools)."""

from __future__ import annotations

from inferencemesh.runtime.http1.limits import ByteBudget, ServerLimits
from inferencemesh.runtime.http1.message import Answer, App, BodyPlan, IncomingRequest
from inferencemesh.runtime.http1.responder import Responder
from inferencemesh.runtime.http1.server import HttpServer

__all__ = [
    "Answer",
    "App",
    "BodyPlan",
    "ByteBudget",
    "HttpServer",
    "IncomingRequest",
    "Responder",
    "ServerLimits",
]
