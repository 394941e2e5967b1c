"""What an attempt's end means: the rows of the error table (contract C3), retry and “full” (A9, B6).

Pure functions over status, headers and body; the attempt only asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from inferencemesh.core.errors import MeshError
from inferencemesh.runtime.engines.base import Engine
from inferencemesh.runtime.http1.client import UpstreamLost
from inferencemesh.wire.chat import plain_result
from inferencemesh.wire.tracker import InBandError, PlainResult, Usage

Headers = list[tuple[bytes, bytes]]

MAX_QUIET_S = 60.0


@dataclass(slots=True, init=False)
class Result:
    """How an attempt ended. `reason` is what `retries.on` and the retry metric name."""

    error: MeshError | None
    reason: str | int
    full: bool  # the engine's own admission refused it: not a failure, not an attempt (B6)
    not_before_s: float
    fault: bool  # counts for the breaker
    usage: Usage | None

    def __init__(
        self,
        error: MeshError | None = None,
        reason: str | int = "",
        full: bool = False,
        not_before_s: float = 0.0,
        fault: bool = False,
        usage: Usage | None = None,
    ) -> None:
        self.error = error
        self.reason = reason
        self.full = full
        self.not_before_s = not_before_s
        self.fault = fault
        self.usage = usage

    @property
    def ok(self) -> bool:
        """Whether the backend's answer is complete and goes to the caller."""
        return self.error is None and not self.full


def protocol_fault(message: str) -> Result:
    """The backend's answer is not what the API or HTTP allows."""
    return Result(MeshError("upstream_protocol", message), "upstream_protocol", fault=True)


def judge_plain(engine: Engine, status: int, headers: Headers, body: bytes, *, stream: bool) -> Result:
    """What a whole answer without events means."""
    is_json = body[:64].lstrip()[:1] == b"{" and body[-64:].rstrip()[-1:] == b"}"
    result = plain_result(body.lstrip()) if is_json else PlainResult(None, None)
    if engine.is_full(status, result.error):
        return full(headers)
    if status >= 500:
        error = MeshError("upstream_error", _said(f"the backend answered {status}", result.error))
        error.details["detail"] = f"the backend answered {status}"
        return Result(error, status, fault=True)
    if status in (401, 403, 404):
        message = (
            f"the backend answered {status}: its key or model name in the gateway's configuration is wrong"
        )
        error = MeshError("upstream_auth", message)
        error.details["detail"] = message
        return Result(error, status)
    if status >= 400:
        return Result()  # the caller's own mistake: passed on with its body
    if not 200 <= status < 300:
        return Result(MeshError("upstream_protocol", f"the backend answered {status}"), status, fault=True)
    if result.error is not None:
        return failed_in_band(result.error)
    if stream:
        return protocol_fault("a stream was asked for and the backend answered without one")
    if not is_json:
        return protocol_fault("the backend's answer is not a JSON object, or only a part of one")
    return Result(usage=result.usage)


def judge_in_band(engine: Engine, error: InBandError, headers: Headers) -> Result:
    """What an error event of a 200 stream means."""
    return full(headers) if engine.is_full(200, error) else failed_in_band(error)


def full(headers: Headers) -> Result:
    """The engine has no room (B6)."""
    return Result(full=True, reason="full", not_before_s=retry_after_s(headers))


def failed_in_band(error: InBandError) -> Result:
    """An error inside a 200: its status, where it names one, decides like the real one (C3)."""
    reason = error.status if error.status is not None else "upstream_error"
    return Result(
        MeshError("upstream_error", _said("the backend reported an error", error)), reason, fault=True
    )


def lost_error(lost: UpstreamLost) -> MeshError:
    """The error of a connection that ended before the response did."""
    if lost.code == "internal":
        return MeshError("internal", "the gateway failed while it relayed the answer")
    error = MeshError(lost.code, "the connection to the backend was lost before its answer was complete")
    if lost.code == "upstream_protocol":
        error.message = str(lost)
    error.details["detail"] = str(lost)
    return error


def retry_after_s(headers: Headers) -> float:
    """Seconds of a backend's Retry-After, at most a minute; what is neither seconds nor a date counts as 0 (O14).

    A date counts from the answer's own `Date`: clocks need not agree. No single answer of a backend may close it for
    longer than a minute: then it is asked again.
    """
    asked = said_at = b""
    for name, value in headers:
        if name == b"retry-after":
            asked = asked or value
        elif name == b"date":
            said_at = value
    if not asked or asked.isdigit():
        return min(float(asked[:9] or 0), MAX_QUIET_S)
    try:
        wait_s = (_instant(asked) - _instant(said_at)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, wait_s), MAX_QUIET_S)


def _instant(date: bytes) -> datetime:
    at = parsedate_to_datetime(date.decode("latin-1"))
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def content_length(headers: Headers) -> int | None:
    """The announced length of a body."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return None


def _said(what: str, error: InBandError | None) -> str:
    if error is None or not error.message:
        return what
    return f"{what}: {error.message[:500]}"
