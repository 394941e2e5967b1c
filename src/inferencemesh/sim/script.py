"""The script of one simulated answer: what a caller asks the model server to do, and where it shall fail.

A script is written into the last user message, so that it passes through any gateway:
`[[sim tokens=50 interval=20ms hang=after:10]]`. It is words, each `key=value` or a bare flag; docs/sim.md
is the manual. Nothing here knows of sockets or time.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

FaultKind = Literal["status", "full", "hang", "cut", "drop", "end", "error"]
Where = Literal["headers", "first", "after", "finish"]

# A script comes from a caller: these bounds keep a typing error from becoming hours or gigabytes.
MAX_TOKENS = 1_000_000
MAX_DURATION_S = 86_400.0
MAX_EVENT_BYTES = 64 * 1024 * 1024
SPLIT_AUTO = -1

_KINDS: tuple[str, ...] = get_args(FaultKind)
_BLOCK = re.compile(r"\[\[sim(?=[\s\]])([^\[\]]*)\]\]")
_OPENING = re.compile(r"\[\[sim(?=[\s\]]|$)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_SIZE = re.compile(r"(\d+)(B|kB|KB|KiB|MB|MiB)?")
_UNITS = {None: 1, "B": 1, "kB": 1000, "KB": 1000, "KiB": 1024, "MB": 1_000_000, "MiB": 1024 * 1024}


class ScriptError(ValueError):
    """A script that cannot be followed; the message names the word and what is allowed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned failure: what happens, and at which point of the answer.

    `where`: `headers` before the response head; `first` after the head, before the first event; `after`
    once `after` tokens were made (0: the role chunk only); `finish` once the finish chunk was sent.
    """

    kind: FaultKind
    where: Where
    after: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """How one answer is made. Durations in seconds, sizes in bytes."""

    tokens: int = 16
    first_s: float = 0.0  # from the slot's grant to the first token
    interval_s: float = 0.0  # between tokens; token k is due at first + k * interval, without drift
    jitter_s: float = 0.0  # each token is late by up to this much, by its own fixed draw
    event_bytes: int = 0  # each content event is padded to this size; 0 leaves it as it is
    fault: Fault | None = None
    status: int = 500  # of `status=`
    error_code: int = 500  # carried by the error event of `error=`
    retry_after: str | None = None  # header of `full` and `status`
    times: int | None = None  # the fault comes only the first so many times that this body is seen
    done: bool = True  # send `data: [DONE]`
    finish: bool = True  # send a finish_reason
    split: int = (
        0  # 0 whole events; n > 0 pieces of n bytes; SPLIT_AUTO a few pieces, some inside a character
    )
    crlf: bool = False
    comments: bool = False  # a comment before each event
    comments_every_s: float = 0.0  # a comment each so many seconds, also while hanging; 0 none
    early_role: bool = False  # the role chunk goes out with the head, not with the first token
    linger_s: float = 0.0  # generation goes on so long after a disconnect
    ignore_disconnect: bool = False  # generation goes on to its natural end after a disconnect


DEFAULT = Script()

Changes = dict[str, object]
_Reader = Callable[[str, str | None], Changes]


def find_script(text: str) -> str | None:
    """The words between `[[sim` and `]]` in a message, or None.

    Raises ScriptError for a block that is not closed, and for more than one block.
    """
    if "[[sim" not in text:
        return None
    blocks = _BLOCK.findall(text)
    if len(blocks) > 1:
        raise ScriptError(f"one message holds one [[sim ...]] block, this one holds {len(blocks)}")
    if not blocks:
        if _OPENING.search(text):
            raise ScriptError("the [[sim block is not closed by ]]")
        return None
    return str(blocks[0])


def parse_script(words: str, base: Script = DEFAULT) -> Script:
    """The script that `words` (without the brackets) ask for; what they do not name stays as in `base`.

    Raises ScriptError on an unknown key, a bad or repeated value, two faults, or a fault that cannot come.
    """
    changes: Changes = {}
    given: set[str] = set()
    for word in words.split():
        key, equals, value = word.partition("=")
        reader = _KEYS.get(key)
        if reader is None:
            raise ScriptError(_unknown(key))
        if key in given:
            raise ScriptError(f"{key} is given twice")
        if key in _KINDS and (other := next((k for k in _KINDS if k in given), None)):
            raise ScriptError(f"an answer fails in one way: {other} or {key}, not both")
        given.add(key)
        changes.update(reader(key, value if equals else None))
    script = replace(base, **changes)  # type: ignore[arg-type]  # the readers make the right types
    _check(script, script.fault if "fault" in changes else None)
    return script


def _check(script: Script, fault: Fault | None) -> None:
    """Refuse what would silently not happen; `fault` is the one that these very words ask for."""
    if fault is not None and fault.where == "after" and fault.after > script.tokens:
        raise ScriptError(
            f"{fault.kind}=after:{fault.after} would never come: the answer has tokens={script.tokens}"
        )
    if fault is not None and fault.where == "finish" and not script.finish:
        raise ScriptError(f"{fault.kind}=finish would never come: nofinish leaves the finish chunk out")
    if script.times is not None and script.fault is None:
        raise ScriptError("times=N needs a fault that it limits")


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, _KEYS, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(_KEYS))}"
    return f"unknown key {key!r}{hint}"


# Readers: one value each, to the fields of Script that it sets.


def _flag(**changes: object) -> _Reader:
    def read(key: str, value: str | None) -> Changes:
        if value is not None:
            raise ScriptError(f"{key} is a flag and takes no value, not {value!r}")
        return changes

    return read


def _whole(key: str, value: str | None, low: int, high: int) -> int:
    if value is None or not value.isascii() or not value.isdigit() or not low <= int(value) <= high:
        raise ScriptError(f"{key} takes a whole number from {low} to {high}, not {value!r}")
    return int(value)


def _number(name: str, low: int, high: int) -> _Reader:
    return lambda key, value: {name: _whole(key, value, low, high)}


def _seconds(key: str, value: str | None) -> float:
    if value == "0":
        return 0.0
    match = _DURATION.fullmatch(value or "")
    if match is None:
        raise ScriptError(f"{key} takes a duration such as 20ms or 1.5s, not {value!r}")
    seconds = float(match[1]) / (1000.0 if match[2] == "ms" else 1.0)
    if seconds > MAX_DURATION_S:
        raise ScriptError(f"{key} is at most {MAX_DURATION_S:.0f}s, not {value}")
    return seconds


def _duration(name: str) -> _Reader:
    return lambda key, value: {name: _seconds(key, value)}


def _size(key: str, value: str | None) -> Changes:
    match = _SIZE.fullmatch(value or "")
    size = int(match[1]) * _UNITS[match[2]] if match else -1
    if not 0 <= size <= MAX_EVENT_BYTES:
        raise ScriptError(f"{key} takes a size up to 64MiB such as 500, 4KiB or 1MB, not {value!r}")
    return {"event_bytes": size}


def _point(kind: FaultKind, *places: Where, bare: Where | None = None) -> _Reader:
    allowed = ", ".join("after:N" if place == "after" else place for place in places)

    def read(key: str, value: str | None) -> Changes:
        name, colon, count = (value or "").partition(":")
        if value is None and bare is not None:
            return {"fault": Fault(kind, bare)}
        for place in places:
            if name == place and bool(colon) == (place == "after"):
                after = _whole(f"{key}=after:N", count, 0, MAX_TOKENS) if colon else 0
                return {"fault": Fault(kind, place, after)}
        raise ScriptError(f"{key} takes one of {allowed}, not {value!r}")

    return read


def _status(key: str, value: str | None) -> Changes:
    return {"fault": Fault("status", "headers"), "status": _whole(key, value, 400, 599)}


def _split(key: str, value: str | None) -> Changes:
    return {"split": SPLIT_AUTO if value is None else _whole(key, value, 1, MAX_EVENT_BYTES)}


def _comments(key: str, value: str | None) -> Changes:
    if value is None:
        return {"comments": True}
    every_s = _seconds(key, value)
    if every_s < 0.001:
        raise ScriptError(f"{key} takes a duration of at least 1ms, not {value!r}")
    return {"comments_every_s": every_s}


def _retry_after(key: str, value: str | None) -> Changes:
    # Any word goes: a header that is nonsense is a fault worth scripting too.
    if not value or not value.isascii() or not value.isprintable():
        raise ScriptError(f"{key} takes the text of the Retry-After header, such as 2")
    return {"retry_after": value}


_KEYS: Mapping[str, _Reader] = {
    "tokens": _number("tokens", 0, MAX_TOKENS),
    "first": _duration("first_s"),
    "interval": _duration("interval_s"),
    "jitter": _duration("jitter_s"),
    "bytes": _size,
    "status": _status,
    "full": _flag(fault=Fault("full", "headers")),
    "hang": _point("hang", "headers", "first", "after", "finish"),
    "cut": _point("cut", "headers", "first", "after", "finish"),
    "drop": _point("drop", "headers", "first", "after", "finish"),
    "end": _point("end", "first", "after", "finish", bare="first"),
    "error": _point("error", "first", "after", "finish"),
    "error_code": _number("error_code", 400, 599),
    "retry_after": _retry_after,
    "times": _number("times", 1, MAX_TOKENS),
    "nodone": _flag(done=False),
    "nofinish": _flag(finish=False),
    "split": _split,
    "crlf": _flag(crlf=True),
    "comments": _comments,
    "early_role": _flag(early_role=True),
    "linger": _duration("linger_s"),
    "ignore_disconnect": _flag(ignore_disconnect=True),
}
KEYS: tuple[str, ...] = tuple(_KEYS)
