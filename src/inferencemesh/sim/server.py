"""The deterministic model server: an OpenAI-compatible front over `Engine`, embeddable in any event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import parse_qs

import orjson

from inferencemesh import __version__
from inferencemesh.runtime.http1.connection import ServerConnection
from inferencemesh.runtime.http1.limits import ByteBudget, ServerLimits
from inferencemesh.runtime.http1.message import Answer, BodyPlan, IncomingRequest
from inferencemesh.runtime.http1.responder import Responder
from inferencemesh.runtime.http1.server import HttpServer
from inferencemesh.sim import DEFAULT_MODEL, DEFAULT_SLOTS
from inferencemesh.sim.cutter import Cutter
from inferencemesh.sim.engine import Engine
from inferencemesh.sim.reply import JSON_HEADERS
from inferencemesh.sim.request import RequestError, error_body, parse_chat
from inferencemesh.sim.script import Script, ScriptError, parse_script

QUEUE_PER_SLOT = 4
OWNED_BY = "inferencemesh-sim"
MAX_MODEL_LEN = 32_768

_BODY_BYTES = 64 * 1024 * 1024
_BODIES_BYTES = 1024 * 1024 * 1024
_SWEEP_EVERY_S = 1.0
_CHAT = frozenset({"/v1/chat/completions", "/chat/completions"})
_MODELS = frozenset({"/v1/models", "/models"})
_METHODS = {
    **dict.fromkeys(_CHAT, "POST"),
    **dict.fromkeys(_MODELS, "GET"),
    "/health": "GET",
    "/version": "GET",
    "/sim/state": "GET",
    "/sim/reset": "POST",
    "/sim/pause": "POST",
    "/sim/resume": "POST",
    "/sim/script": "POST",
}
_PROTOCOL_STATUS = {
    "invalid_request": 400,
    "request_timeout": 408,
    "body_too_large": 413,
    "headers_too_large": 431,
    "rate_limit_exceeded": 429,
    "internal": 500,
}


class SimServer:
    """A model server of `slots` concurrent sequences that answers as scripts ask (docs/sim.md).

    `queue` is how many requests may wait (None: four for each slot; 0: none). `script` holds words of the
    script language that apply to every request, under those that the request's own script gives;
    `default_tokens` and `default_interval_s` (seconds) are the same for two keys.
    Raises ScriptError for a bad `script`, ValueError for bad numbers.
    """

    def __init__(
        self,
        slots: int = DEFAULT_SLOTS,
        seed: int = 0,
        *,
        queue: int | None = None,
        models: Sequence[str] = (DEFAULT_MODEL,),
        script: str = "",
        default_tokens: int | None = None,
        default_interval_s: float | None = None,
        keepalive_s: float = 75.0,
    ) -> None:
        self._slots = slots
        self._seed = seed
        self._queue = slots * QUEUE_PER_SLOT if queue is None else queue
        self._models = tuple(models)
        base = Script()
        if default_tokens is not None:
            base = replace(base, tokens=default_tokens)
        if default_interval_s is not None:
            base = replace(base, interval_s=default_interval_s)
        self._script = parse_script(script, base)
        # Engines do not cut off slow readers or slow senders; a gateway before them has to.
        self._limits = ServerLimits(
            body_timeout_s=3600.0,
            keepalive_s=keepalive_s,
            max_connections=100_000,
            send_timeout_s=86_400.0,
        )
        self._engine: Engine | None = None
        self._http: HttpServer | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one. Raises OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._engine = Engine(
            loop,
            slots=self._slots,
            queue=self._queue,
            seed=self._seed,
            models=self._models,
            script=self._script,
        )
        self._http = _Listener(self._engine, self._limits)
        await self._http.start(host, port)
        self._sweep(loop)

    @property
    def engine(self) -> Engine:
        """The engine behind it, for tests and demos in the same loop. Raises RuntimeError before `start`."""
        if self._engine is None:
            raise RuntimeError("the model server has not been started")
        return self._engine

    @property
    def port(self) -> int:
        """The port that it listens on. Raises RuntimeError before `start`."""
        if self._http is None:
            raise RuntimeError("the model server has not been started")
        return self._http.port

    def state(self) -> dict[str, object]:
        """What `GET /sim/state` answers."""
        return self.engine.state()

    @property
    def url(self) -> str:
        """Where it is reached on this machine. Raises RuntimeError before `start`."""
        return f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        """What `POST /sim/reset` does."""
        self.engine.reset()

    async def close(self) -> None:
        """Stop at once: running answers are broken off. Idempotent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._http is not None:
            self._http.stop_accepting()
            self.engine.reset()
            await self._http.close(0.0)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._http is not None:
            self._http.sweep(loop.time())
            self._sweeper = loop.call_later(_SWEEP_EVERY_S, self._sweep, loop)


class _Listener(HttpServer):
    """Counts connections: whoever reuses them well opens few."""

    def __init__(self, engine: Engine, limits: ServerLimits) -> None:
        super().__init__(SimApp(engine), limits, ByteBudget(_BODIES_BYTES))
        self._engine = engine

    def admit(self, conn: ServerConnection) -> tuple[str, str] | None:
        """Count a new connection in."""
        self._engine.connections_opened += 1
        self._engine.connections_open += 1
        return super().admit(conn)

    def forget(self, conn: ServerConnection) -> None:
        """Count a connection out."""
        self._engine.connections_open -= 1
        super().forget(conn)


class SimApp:
    """Routes requests to the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def on_head(self, request: IncomingRequest) -> Answer | BodyPlan:
        """404 and 405 are answered on the head; everything else is read."""
        path = request.path
        method = _METHODS.get(path) or ("GET" if _model_id(path) else None)
        if method is None:
            return _error(404, f"there is no {path} here")
        if request.method != method:
            return _error(405, f"{path} takes {method}, not {request.method}")
        return BodyPlan(_BODY_BYTES)

    def on_request(self, request: IncomingRequest, responder: Responder) -> None:
        """Answer, or hand over to the engine."""
        body = bytes(request.body)
        request.release_body()
        if request.path in _CHAT:
            self._chat(request, body, responder)
            return
        try:
            document = self._answer(request, body)
        except RequestError as error:
            responder.send(
                error.status, JSON_HEADERS, error_body(error.status, error.message, error.param)
            )  # fmt: skip
            return
        responder.send(200, JSON_HEADERS, orjson.dumps(document))

    def on_protocol_error(self, code: str, message: str, request: IncomingRequest | None) -> Answer:
        """Errors that the HTTP layer found."""
        return _error(_PROTOCOL_STATUS.get(code, 503), message)

    def _chat(self, request: IncomingRequest, body: bytes, responder: Responder) -> None:
        engine = self._engine
        given = request.header(b"x-request-id")
        name = given.decode("latin-1") if given else "anonymous"
        record = engine.history.open(name, request.head_at)
        try:
            call = parse_chat(body, engine.models, engine.script)
            engine.submit(call, responder, Cutter(responder, request.conn, engine.loop), record)
        except RequestError as error:
            engine.history.totals.invalid += 1
            record.state = "invalid"
            record.ended_at = engine.loop.time()
            responder.send(
                error.status, JSON_HEADERS, error_body(error.status, error.message, error.param)
            )  # fmt: skip

    def _answer(self, request: IncomingRequest, body: bytes) -> dict[str, object]:
        """The document of everything but chat; `POST`s of `/sim/` answer with the new state's counters."""
        engine = self._engine
        path = request.path
        if path == "/health":
            return {"status": "ok"}
        if path == "/version":
            return {"version": __version__, "engine": OWNED_BY}
        if path in _MODELS:
            return {"object": "list", "data": [self._model(name) for name in engine.models]}
        if path == "/sim/state":
            query = parse_qs(request.query.decode("latin-1"))
            only = query.get("id", [None])[0]
            return engine.state(requests=query.get("requests") != ["0"], only=only)
        if path == "/sim/reset":
            engine.reset()
        elif path == "/sim/pause":
            engine.clock.pause()
        elif path == "/sim/resume":
            engine.clock.resume()
        elif path == "/sim/script":
            try:
                engine.script = parse_script(body.decode("utf-8", "replace"))
            except ScriptError as error:
                raise RequestError(400, f"bad sim script: {error}") from None
        else:
            name = _model_id(path)
            if name not in engine.models:
                raise RequestError(404, f"The model `{name}` does not exist.", "model")
            return self._model(name)
        return engine.state(requests=False)

    def _model(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": OWNED_BY,
            "root": name,
            "parent": None,
            "max_model_len": MAX_MODEL_LEN,
        }


def _model_id(path: str) -> str:
    """The id in `/v1/models/{id}` (ids may hold slashes), or an empty string."""
    for prefix in ("/v1/models/", "/models/"):
        if path.startswith(prefix):
            return path[len(prefix) :]
    return ""


def _error(status: int, message: str) -> Answer:
    return Answer(status, JSON_HEADERS, error_body(status, message))
