"""Reads the body of a chat completion request, and says what is wrong with one (as vLLM words it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from inferencemesh.sim.script import Script, ScriptError, find_script, parse_script

MAX_CHOICES = 128
MAX_PLAIN_BYTES = 256 * 1024 * 1024

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class RequestError(Exception):
    """A request that is answered with an error: HTTP status, message, and the parameter at fault."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """The JSON of an error, in the shape of OpenAI and vLLM (`code` is the number of the status)."""
    kind = _TYPES.get(status, "APIError")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One valid request for a chat completion."""

    digest: bytes  # of the body as received: the answer's content follows from it
    model: str
    stream: bool
    choices: int  # `n`, and so the slots that it takes
    max_tokens: int | None
    include_usage: bool
    prompt_tokens: int
    script: Script


def parse_chat(body: bytes, models: Mapping[str, object], base: Script) -> ChatCall:
    """Read a chat completion request; `base` is the script of a request that names nothing else.

    Raises RequestError: 400 for a bad body or script, 404 for a model that is not served.
    """
    document = _document(body)
    model = document.get("model")
    if not isinstance(model, str):
        raise RequestError(400, "model must be a string", "model")
    if model not in models:
        raise RequestError(404, f"The model `{model}` does not exist.", "model")
    last_user, prompt_tokens = _read_messages(document.get("messages"))
    try:
        words = find_script(last_user)
        script = base if words is None else parse_script(words, base)
    except ScriptError as error:
        raise RequestError(400, f"bad sim script: {error}", "messages") from None
    stream = _boolean(document, "stream")
    options = document.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError(400, "stream_options must be an object", "stream_options")
    if options and not stream:
        raise RequestError(400, "stream_options is allowed only with stream: true", "stream_options")
    choices = _count(document, "n", 1, MAX_CHOICES) or 1
    if not stream and script.tokens * script.event_bytes * choices > MAX_PLAIN_BYTES:
        raise RequestError(400, "the answer would be too long for one document; ask for a stream", "messages")
    limits = [_count(document, name, 1, None) for name in ("max_completion_tokens", "max_tokens")]
    return ChatCall(
        digest=blake2b(body, digest_size=16).digest(),
        model=model,
        stream=stream,
        choices=choices,
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        include_usage=_boolean(options, "include_usage"),
        prompt_tokens=prompt_tokens,
        script=script,
    )


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise RequestError(400, "the body must be a JSON object")
    return document


def _boolean(document: dict[str, Any], name: str) -> bool:
    value = document.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestError(400, f"{name} must be true or false", name)
    return value


def _count(document: dict[str, Any], name: str, low: int, high: int | None) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high and value > high):
        upper = f" to {high}" if high else " up"
        raise RequestError(400, f"{name} must be a whole number from {low}{upper}", name)
    return value


def _read_messages(messages: Any) -> tuple[str, int]:
    """The text of the last user message, and a count of words that stands for the prompt's tokens."""
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "messages must be a list with at least one message", "messages")
    last_user = ""
    words = 0
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(400, "each message must be an object with a role", "messages")
        text = _text(message.get("content"))
        words += len(text.split()) + 3  # the template's own marks around each message
        if message["role"] == "user":
            last_user = text
    return last_user, words


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:  # an assistant message with tool calls only
        return ""
    if not isinstance(content, list):
        raise RequestError(400, "content must be a string or a list of parts", "messages")
    parts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(text for text in parts if isinstance(text, str))
