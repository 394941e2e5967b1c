"""The public port's application: what is decided on a request's head, and what after its body (contract A10, A12).

Path, method, key, media type, `x-mesh-*` headers, size and shutdown are decided on the head, before a body byte is
read. The model, the request's width and admission follow once the body is there. No slot and no place is taken
before that.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import orjson

from inferencemesh.auth.keys import KeyRing
from inferencemesh.auth.tenants import Tenant
from inferencemesh.core.errors import MeshError
from inferencemesh.core.events import Event, RequestRefused
from inferencemesh.core.outcome import Phase
from inferencemesh.core.request import Request
from inferencemesh.runtime.exchange import Exchange
from inferencemesh.runtime.http1.responder import Responder
from inferencemesh.runtime.http1.server import Answer, BodyPlan, IncomingRequest
from inferencemesh.runtime.services import Services
from inferencemesh.runtime.settings import ModelSettings
from inferencemesh.runtime.upstream import random_hex
from inferencemesh.wire.fields import credentials, parse_mesh_timeout, valid_request_id
from inferencemesh.wire.peek import peek_chat
from inferencemesh.wire.render import error_response
from inferencemesh.wire.trace import next_traceparent, parse_traceparent

Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_CHAT = frozenset({"/v1/chat/completions", "/chat/completions"})
_MODELS = frozenset({"/v1/models", "/models"})
_LIVE = frozenset({"/health/live", "/livez", "/healthz"})
_READY = frozenset({"/health/ready", "/readyz", "/health"})
# The service's own limits: `admission.overload_status` chooses their status.
_SERVICE_LIMITS = frozenset({"queue_full", "queue_bytes_full"})


class Caller:
    """What the head told of a request. `returns` is whether it says that it tries again, as the SDKs do."""

    __slots__ = ("class_name", "class_offset_s", "id", "returns", "tenant", "timeout_s", "trace")

    def __init__(
        self,
        id: str,
        tenant: Tenant,
        timeout_s: float | None,
        class_name: str,
        class_offset_s: float,
        trace: bytes | None,
        returns: bool | None,
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.timeout_s = timeout_s
        self.class_name = class_name
        self.class_offset_s = class_offset_s
        self.trace = trace
        self.returns = returns


class PublicApp:
    """The `App` of the data path's server."""

    def __init__(
        self,
        services: Services,
        settings: dict[str, ModelSettings],
        keys: KeyRing,
        *,
        body_bytes: int,
        ready: Callable[[], tuple[bool, list[str]]],
        rng: random.Random,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.services = services
        self.settings = settings
        self.keys = keys
        self.shutting_down = False
        self._body_bytes = body_bytes
        self._plan = BodyPlan(body_bytes)
        self._ready = ready
        self._rng = rng
        self._now = now
        self._started_at = int(now())
        self._emit: Callable[[Event], None] = services.emit

    # --- on the head ------------------------------------------------------------------------------------------

    def on_head(self, request: IncomingRequest) -> Answer | BodyPlan:
        """Decide on the head alone."""
        request_id = valid_request_id(request.header(b"x-request-id")) or random_hex(self._rng)
        path = request.path
        try:
            if path in _CHAT:
                return self._chat_head(request, request_id)
            if path in _LIVE or path in _READY:
                self._allow(request, "GET", "HEAD")
                return self._health(path in _READY, request_id)
            if path in _MODELS or path.startswith(("/v1/models/", "/models/")):
                self._allow(request, "GET", "HEAD")
                return self._models(request, request_id)
            message = f"there is no {_shown(path)} here; chat completions are at POST /v1/chat/completions"
            raise MeshError("unknown_path", message)
        except _Preflight as preflight:
            return Answer(204, [(b"allow", preflight.allow), *_ids(request_id)], b"")
        except MeshError as error:
            tenant = request.context
            name = tenant.name if isinstance(tenant, Tenant) else None
            return self._refused(error, request, request_id, tenant=name, model=None)

    def _chat_head(self, request: IncomingRequest, request_id: str) -> Answer | BodyPlan:
        self._allow(request, "POST")
        if self.shutting_down:
            raise MeshError("shutting_down", "the gateway is shutting down", retry_after_s=1.0, close=True)
        tenant = request.context = self.keys.identify(credentials(request.headers), self._now())
        content_type = request.header(b"content-type")
        if content_type is not None and not _is_json(content_type):
            message = "the body must be JSON: send the header content-type: application/json"
            raise MeshError("unsupported_media_type", message)
        encoding = request.header(b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
            raise MeshError("unsupported_media_type", "send the body without content-encoding")
        timeout = request.header(b"x-mesh-timeout")
        klass = request.header(b"x-mesh-class")
        timeout_s = parse_mesh_timeout(timeout) if timeout is not None else None
        name, offset_s = self.keys.class_of(tenant, klass.decode("latin-1") if klass is not None else None)
        parent = parse_traceparent(request.header(b"traceparent"))
        trace = next_traceparent(parent).encode() if parent is not None else None
        tries = request.header(b"x-stainless-retry-count")
        returns = tries.strip() != b"0" if tries is not None else None
        request.context = Caller(request_id, tenant, timeout_s, name, offset_s, trace, returns)
        return self._plan if timeout_s is None else BodyPlan(self._body_bytes, timeout_s=timeout_s)

    def _allow(self, request: IncomingRequest, *methods: str) -> None:
        if request.method in methods:
            return
        allow = ", ".join((*methods, "OPTIONS"))
        if request.method == "OPTIONS":
            raise _Preflight(allow.encode())
        message = (
            f"{_shown(request.method)} is not possible on {_shown(request.path)}; use {' or '.join(methods)}"
        )
        raise MeshError("method_not_allowed", message, details={"allow": allow})

    # --- after the body ---------------------------------------------------------------------------------------

    def on_request(self, request: IncomingRequest, responder: Responder) -> None:
        """The body is whole: validate, offer, and either refuse or start the exchange. One step, no await (A4)."""
        caller = request.context
        if not isinstance(caller, Caller):
            raise TypeError("on_request without on_head")
        model: str | None = None
        try:
            peek = peek_chat(request.body)
            model = peek.model  # as asked for; what is not configured counts as `other`
            settings = self.settings.get(peek.model)
            if settings is None:
                message = (
                    f"there is no model {_shown(peek.model)} here; GET /v1/models lists those you may use"
                )
                raise MeshError("model_not_found", message, param="model")
            settings = settings.of_class(caller.class_name)
            model = settings.name
            if not caller.tenant.may_use(model):
                raise MeshError("forbidden_model", f"this key may not use the model {model}", param="model")
            total_s = (
                settings.total_s if caller.timeout_s is None else min(caller.timeout_s, settings.total_s)
            )
            asked = Request(
                id=caller.id,
                tenant=caller.tenant.name,
                model=model,
                width=peek.width,
                size_bytes=len(request.body),
                class_offset_s=caller.class_offset_s,
                arrived_at=request.head_at,
                deadline_at=request.head_at + total_s,
                returns=caller.returns,
                class_name=caller.class_name,
            )
            if self.shutting_down:
                raise MeshError(
                    "shutting_down", "the gateway is shutting down", retry_after_s=1.0, close=True
                )
            self.services.gate.offer(asked)
        except MeshError as error:
            request.release_body()
            answer = self._refused(error, request, caller.id, tenant=caller.tenant.name, model=model)
            responder.send(answer.status, answer.headers, answer.body)
            return
        Exchange(self.services, request, responder, asked, peek, settings, caller.trace).start()

    def on_protocol_error(self, code: str, message: str, request: IncomingRequest | None) -> Answer:
        """A request that HTTP itself forbids, or that was cut off."""
        told = request.header(b"x-request-id") if request is not None else None
        request_id = valid_request_id(told) or random_hex(self._rng)
        error = MeshError(code, message, close=True)
        caller = request.context if request is not None else None
        tenant = caller.tenant.name if isinstance(caller, Caller) else None
        return self._refused(error, request, request_id, tenant=tenant, model=None)

    # --- answers of our own -----------------------------------------------------------------------------------

    def _refused(
        self,
        error: MeshError,
        request: IncomingRequest | None,
        request_id: str,
        *,
        tenant: str | None,
        model: str | None,
    ) -> Answer:
        if error.code in _SERVICE_LIMITS and error.status is None:
            error.status = self.services.overload_status
        status, headers, body = error_response(
            error, api="openai", request_id=request_id, phase=Phase.BEFORE_HEADERS
        )
        allow = error.details.get("allow")
        if isinstance(allow, str):
            headers.append((b"allow", allow.encode()))
        headers.append((b"x-mesh-queue-ms", b"0"))
        arrived_at = request.head_at if request is not None else None
        duration_s = 0.0 if not arrived_at else self.services.loop.time() - arrived_at
        self._emit(
            RequestRefused(
                at=self._now(),
                id=request_id,
                tenant=tenant or "",
                model=model,
                code=error.code,
                status=status,
                duration_s=duration_s,
                message=error.message,
                method=request.method if request is not None else "",
                path=request.path[:200] if request is not None else "",
                peer=request.peer if request is not None else "",
            )
        )
        return Answer(status, headers, body, close=error.close)

    def _health(self, readiness: bool, request_id: str) -> Answer:
        if not readiness:
            return _json_answer(200, {"status": "live"}, request_id)
        ready, reasons = self._ready()
        status = ("degraded" if reasons else "ready") if ready else "not_ready"
        return _json_answer(200 if ready else 503, {"status": status, "reasons": reasons}, request_id)

    def _models(self, request: IncomingRequest, request_id: str) -> Answer:
        tenant = self.keys.identify(credentials(request.headers), self._now())
        usable = [name for name, settings in self.settings.items() if tenant.may_use(settings.name)]
        if request.path in _MODELS:
            return _json_answer(
                200, {"object": "list", "data": [self._model(name) for name in usable]}, request_id
            )
        wanted = request.path.split("/models/", 1)[1]
        if wanted not in usable:
            raise MeshError("model_not_found", f"there is no model {_shown(wanted)} that this key may use")
        return _json_answer(200, self._model(wanted), request_id)

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._started_at, "owned_by": "inferencemesh"}


class _Preflight(Exception):  # noqa: N818 - a way out of a decision, not an error
    """OPTIONS on a known path."""

    def __init__(self, allow: bytes) -> None:
        super().__init__()
        self.allow = allow


def _is_json(content_type: bytes) -> bool:
    if content_type == b"application/json":
        return True
    media = content_type.split(b";", 1)[0].strip().lower()
    return media == b"application/json" or (media.startswith(b"application/") and media.endswith(b"+json"))


def _shown(text: str) -> str:
    """A caller's own words in a message: bounded and printable."""
    return repr(text if len(text) <= 100 else text[:100] + "…")


def _ids(request_id: str) -> Headers:
    raw = request_id.encode()
    return [(b"x-request-id", raw), (b"request-id", raw)]


def _json_answer(status: int, content: object, request_id: str) -> Answer:
    return Answer(
        status, [_JSON, *_ids(request_id), (b"x-mesh-queue-ms", b"0")], orjson.dumps(content), close=False
    )
