"""The admin port's application: metrics, state, live requests and the dashboard.

Nothing here changes anything: every route is a GET. Errors are JSON. It stands on its own port and is on
nobody's hot path, but it shares the loop with every stream: rendering metrics, which is long, is done in a
thread.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

import orjson
from prometheus_client.exposition import choose_encoder, gzip_accepted
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from inferencemesh.admin.guard import Guard, error_body, is_loopback
from inferencemesh.admin.view import AdminView
from inferencemesh.telemetry.prometheus import MeshRegistry

_GZIP_FROM_BYTES = 2_000
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CODES = {404: "unknown_path", 405: "method_not_allowed"}


def admin_app(
    view: AdminView, token: str | None = None, *, host: str = "127.0.0.1", open_metrics: bool = False
) -> ASGIApp:
    """The whole admin application. `host` is what it is bound to: on loopback the Host header is checked.

    Raises ValueError for an address that is not loopback without a token, and for an empty token.
    """
    if token is None and not is_loopback(host):
        raise ValueError(f"admin.token is required when admin.host is not a loopback address ({host})")
    files = dashboard_files()
    routes = [
        Route("/", partial(_file, files["index.html"])),
        Route("/health", partial(_health, view)),
        Route("/metrics", partial(_metrics, view)),
        Route("/api/state", partial(_state, view)),
        Route("/api/requests", partial(_requests, view)),
        *(
            Route(f"/static/{name}", partial(_file, file))
            for name, file in files.items()
            if name != "index.html"
        ),
    ]
    return Guard(_starlette(routes), token=token, loopback=is_loopback(host), open_metrics=open_metrics)


def metrics_app(view: AdminView, *, host: str) -> ASGIApp:
    """Only `/metrics` and `/health`, without a token, for a bind of its own."""
    routes = [Route("/metrics", partial(_metrics, view)), Route("/health", partial(_health, view))]
    return Guard(_starlette(routes), token=None, loopback=is_loopback(host), open_metrics=True)


def dashboard_files() -> dict[str, tuple[bytes, str]]:
    """The page's files, read once: name to content and media type."""
    files: dict[str, tuple[bytes, str]] = {}
    for entry in resources.files("inferencemesh.admin.dashboard").iterdir():
        media_type = _TYPES.get("." + entry.name.rpartition(".")[2])
        if media_type is not None:
            files[entry.name] = (entry.read_bytes(), media_type)
    return files


def _starlette(routes: list[Route]) -> Starlette:
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _internal})


def _json(document: Any, status: int = 200) -> Response:
    body = orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS)
    return Response(body, status, media_type="application/json")


async def _file(file: tuple[bytes, str], _request: Request) -> Response:
    return Response(file[0], media_type=file[1])


async def _state(view: AdminView, _request: Request) -> Response:
    return _json(view.state())


async def _requests(view: AdminView, _request: Request) -> Response:
    return _json({"requests": list(view.requests())})


async def _health(view: AdminView, _request: Request) -> Response:
    # Open without a token, so it says whether, and not why.
    ready, reasons = view.ready()
    status = ("degraded" if reasons else "ready") if ready else "not_ready"
    return _json({"status": status}, 200 if ready else 503)


async def _metrics(view: AdminView, request: Request) -> Response:
    registry = view.metrics_registry
    source = registry.frozen() if isinstance(registry, MeshRegistry) else registry
    try:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
    except (TypeError, ValueError):  # a version that is none
        encode, content_type = choose_encoder("")
    compress = gzip_accepted(request.headers.get("accept-encoding", ""))
    body, compressed = await run_in_threadpool(_render, encode, source, compress)
    headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
    if compressed:
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers)


def _render(encode: Callable[[Any], bytes], source: Any, compress: bool) -> tuple[bytes, bool]:
    body = encode(source)
    if compress and len(body) >= _GZIP_FROM_BYTES:
        return gzip.compress(body, compresslevel=3), True
    return body, False


async def _http_error(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else ""
    _, _, body = error_body(status, _CODES.get(status, "invalid_request"), detail)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return Response(body, status, headers=headers, media_type="application/json")


async def _internal(_request: Request, _error: Exception) -> Response:
    _, _, body = error_body(500, "internal", "this is a bug of the gateway; its log says more")
    return Response(body, 500, media_type="application/json")
