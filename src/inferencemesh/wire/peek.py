"""Looks into a request body without rebuilding it: what we decide on, and where the model's name stands.

The whole body is validated (one JSON object in UTF-8, bounded depth), since what is unclear to us may be
read otherwise by the backend: a key that we decide on and that stands there twice is refused. Everything
else is the backend's to judge.

Positions are found by searching bytes, never by walking the document. In valid JSON, `"model"` with a colon
behind it and no backslash before it is a key, at whatever depth: a quotation mark inside a string has a
backslash before it, and one that ends a string is not followed by a word. When there is only one such place
it is the top level's. When there are more, each is given a name of its own, the body is parsed once more,
and the names at the top level tell which is which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from inferencemesh.core.errors import MeshError

MAX_SEQUENCES = 128  # of one prompt; the largest `n` of the public APIs
MAX_WIDTH = 1024  # sequences of one request, all its prompts together
MAX_MODEL_NAME = 1024  # characters
# A parsed value takes up to 60 bytes of memory for 3 bytes of text: without these bounds a 30 MB body
# of `[],[],` takes 900 MB, and stops everything for 3 seconds. Text and pictures stay far below.
MAX_VALUES = 2_000_000
MAX_CONTAINERS = 500_000
_BACKSLASH = 0x5C
_MAX_PLACES = 20_000  # nested keys of one name that we are willing to tell apart

_MODEL_VALUE = re.compile(rb'"[ \t\n\r]*:[ \t\n\r]*("(?:[^"\\]|\\.)*")')
_ESCAPED_LETTER = re.compile(rb"\\u00[567]")
_DECISIVE = ("model", "stream", "n", "best_of", "max_tokens", "max_completion_tokens", "prompt")
_QUOTED = {key: f'"{key}"'.encode() for key in _DECISIVE}
# A key in any spelling that JSON allows: each letter as it is or as a Unicode escape.
_SPELLINGS = {
    key: re.compile(
        ('"' + "".join(rf"(?:{c}|\\u00(?i:{ord(c):02x}))" for c in key) + r'"(?=[ \t\n\r]*:)').encode()
    )
    for key in _DECISIVE
}


# A generated __init__ is never compiled (docs/deployment.md, "Speed"): what is made for each request has its own.
@dataclass(slots=True, init=False)
class Peek:
    """What a request asks for."""

    model: str
    stream: bool
    width: int  # slots that it takes: sequences made at once (contract A13)
    max_tokens: int | None
    include_usage: bool
    choices: int  # sequences in the answer: each has its own finish reason

    def __init__(
        self,
        model: str,
        stream: bool,
        width: int,
        max_tokens: int | None,
        include_usage: bool,
        choices: int = 1,
    ) -> None:
        self.model = model
        self.stream = stream
        self.width = width
        self.max_tokens = max_tokens
        self.include_usage = include_usage
        self.choices = choices


def peek_chat(body: bytes) -> Peek:
    """Look into a chat completion request. Raises MeshError `invalid_json` or `invalid_request` (G1)."""
    asked = _load(body)
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages", "`messages` must be an array with at least one message.")
    return _peek(body, asked, prompts=1)


def peek_completion(body: bytes) -> Peek:
    """Look into a completion request: a list of prompts takes a slot for each. Raises as `peek_chat`."""
    asked = _load(body)
    prompt = asked.get("prompt")
    if isinstance(prompt, list):
        if not prompt:
            raise _invalid("prompt", "`prompt` must not be an empty array.")
        # Numbers are the tokens of one prompt.
        return _peek(body, asked, prompts=1 if isinstance(prompt[0], int) else len(prompt))
    if not isinstance(prompt, str) and not ("prompt_embeds" in asked and prompt is None):
        raise _invalid("prompt", "`prompt` must be a string or an array of prompts.")
    return _peek(body, asked, prompts=1)


def peek_plain(body: bytes) -> Peek:
    """Look into a request of which only the model matters (embeddings …). Raises as `peek_chat`."""
    asked = _load(body)
    peek = Peek(_model(asked), _stream(asked), width=1, max_tokens=None, include_usage=False)
    _check_keys(body, asked)
    return peek


def replace_model(body: bytes, name: str) -> bytes:
    """The body with another model name; every other byte stays. `body` is one that was looked into."""
    start, end = model_span(body)
    return body[:start] + orjson.dumps(name) + body[end:]


def model_span(body: bytes) -> tuple[int, int]:
    """The byte range of the model's value, quotation marks included. `body` is one that was looked into."""
    name = b'"model"'
    last = body.rfind(name)
    alone = last >= 0 and _is_plain(body) and body.rfind(name, 0, last) < 0
    end = last + len(name) if alone else _only_place(body, orjson.loads(body), "model")
    value = _MODEL_VALUE.match(body, end - 1)
    assert value is not None  # noqa: S101 - the body is valid JSON and its model a string
    return value.span(1)


def _peek(body: bytes, asked: dict[str, Any], prompts: int) -> Peek:
    model = _model(asked)
    stream = _stream(asked)
    n = _sequences(asked, "n")
    width = max(n, _sequences(asked, "best_of")) * prompts
    if width > MAX_WIDTH:
        param = "prompt" if prompts > 1 else "n"
        raise _invalid(param, f"The request makes {width} sequences; ask for at most {MAX_WIDTH} at once.")
    max_tokens = _max_tokens(asked)
    options = asked.get("stream_options")
    include_usage = isinstance(options, dict) and options.get("include_usage") is True
    _check_keys(body, asked)
    return Peek(model, stream, width, max_tokens, include_usage, n * prompts)


def _load(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_CONTAINERS:
        containers = body.count(b"[") + body.count(b"{")
        if containers > MAX_CONTAINERS or containers + body.count(b",") > MAX_VALUES:
            limit = f"{MAX_VALUES} JSON values, {MAX_CONTAINERS} arrays and objects among them"
            raise _invalid(None, f"The body may have at most {limit}; send a smaller request.")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _invalid_json(body, str(error)) from None
    if not isinstance(value, dict):
        raise _invalid(None, 'The body must be one JSON object, such as {"model": "...", "messages": [...]}.')
    return value


def _invalid_json(body: bytes, reason: str) -> MeshError:
    if not body:
        text = "The body is empty; send one JSON object."
    elif body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) or b"\x00" in body[:4]:
        text = "The body must be UTF-8 without a byte order mark; encode the JSON as plain UTF-8."
    elif "depth limit" in reason:
        text = "The JSON of the body is nested too deeply; send a flatter object."
    else:
        text = (
            f"The body is not valid JSON ({reason}). Send one JSON object in UTF-8, without NaN or Infinity."
        )
    return MeshError("invalid_json", text)


def _invalid(param: str | None, message: str) -> MeshError:
    return MeshError("invalid_request", message, param=param)


def _model(asked: dict[str, Any]) -> str:
    model = asked.get("model")
    if not isinstance(model, str) or not model:
        raise _invalid(
            "model", "`model` must be the name of a model; GET /v1/models lists those you may use."
        )
    if len(model) > MAX_MODEL_NAME:
        raise _invalid("model", f"`model` must be at most {MAX_MODEL_NAME} characters long.")
    return model


def _stream(asked: dict[str, Any]) -> bool:
    stream = asked.get("stream")
    if stream is None:
        return False
    if not isinstance(stream, bool):
        raise _invalid("stream", "`stream` must be true or false.")
    return stream


def _sequences(asked: dict[str, Any], key: str) -> int:
    value = asked.get(key)
    if value is None:
        return 1
    if type(value) is not int or not 1 <= value <= MAX_SEQUENCES:
        raise _invalid(key, f"`{key}` must be a whole number from 1 to {MAX_SEQUENCES}.")
    return value


def _max_tokens(asked: dict[str, Any]) -> int | None:
    """The bound on output tokens, the newer name first. Negative means none, as to some engines."""
    bound: int | None = None
    for key in ("max_tokens", "max_completion_tokens"):
        value = asked.get(key)
        if value is None:
            continue
        if type(value) is not int:
            raise _invalid(key, f"`{key}` must be a whole number.")
        bound = value
    return bound if bound is not None and bound >= 0 else None


def _check_keys(body: bytes, asked: dict[str, Any]) -> None:
    """Raise if a key that we decide on stands at the top level twice."""
    plain = _is_plain(body)
    for key in asked:
        name = _QUOTED.get(key)
        # `rfind` is the fastest of the searches by far, so both questions are asked from the end.
        if name is not None and not (plain and body.rfind(name, 0, body.rfind(name)) < 0):
            _only_place(body, asked, key)


def _is_plain(body: bytes) -> bool:
    """Whether no letter of the body can be an escape, so that every key stands there as it is spelt."""
    return body.rfind(b"\\u00") < 0 or _ESCAPED_LETTER.search(body) is None


def _only_place(body: bytes, asked: dict[str, Any], key: str) -> int:
    """Where the one top-level key of this name ends, its quotation mark included. Raises if there are two."""
    found = _SPELLINGS[key].finditer(body)
    places = list(
        islice((place for place in found if body[place.start() - 1] != _BACKSLASH), _MAX_PLACES + 1)
    )
    if len(places) > _MAX_PLACES:
        raise _invalid(key, f"The body has more than {_MAX_PLACES} keys named `{key}`; send fewer.")
    top = places if len(places) == 1 else _at_top_level(body, asked, places)
    if len(top) > 1:
        raise _invalid(key, f"`{key}` stands more than once in the body; send it once.")
    return top[0].end()


def _at_top_level(body: bytes, asked: dict[str, Any], places: list[re.Match[bytes]]) -> list[re.Match[bytes]]:
    """Which of these keys stand at the top level: those whose new names are found there."""
    prefix = "key"
    while any(name.startswith(prefix) for name in asked):
        prefix += "_"
    parts: list[bytes] = []
    start = 0
    for number, place in enumerate(places):
        parts += (body[start : place.start()], f'"{prefix}{number}"'.encode())
        start = place.end()
    parts.append(body[start:])
    renamed: dict[str, Any] = orjson.loads(b"".join(parts))
    return [places[int(name.removeprefix(prefix))] for name in renamed if name.startswith(prefix)]
