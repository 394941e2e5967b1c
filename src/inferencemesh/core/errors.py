"""The table of errors that callers see: code → status, OpenAI type, Anthropic type (interface "Errors").

One table for every protocol and for plain and in-stream errors, so that a code means one thing everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One row of the table."""

    code: str
    status: int
    type: str  # the `type` of OpenAI-shaped bodies
    anthropic_type: str
    refusal: bool = False  # an overload or shutdown answer: carries Retry-After
    never_retry: bool = False  # `x-should-retry: false`: coming back cannot help


def _spec(
    code: str, status: int, type_: str, anthropic: str, *, refusal: bool = False, never_retry: bool = False
) -> tuple[str, ErrorSpec]:
    return code, ErrorSpec(code, status, type_, anthropic, refusal, never_retry)


_BAD = "invalid_request_error"
_OVER = "overloaded_error"

ERRORS: dict[str, ErrorSpec] = dict(
    (
        _spec("invalid_request", 400, _BAD, _BAD),
        _spec("invalid_json", 400, _BAD, _BAD),
        _spec("body_too_large", 413, _BAD, "request_too_large"),
        _spec("headers_too_large", 431, _BAD, _BAD),
        _spec("unsupported_media_type", 415, _BAD, _BAD),
        _spec("invalid_api_key", 401, "authentication_error", "authentication_error"),
        _spec("forbidden_model", 403, "permission_error", "permission_error"),
        _spec("model_not_found", 404, "not_found_error", "not_found_error"),
        _spec("unknown_path", 404, "not_found_error", "not_found_error"),
        _spec("method_not_allowed", 405, _BAD, _BAD),
        _spec("request_timeout", 408, "timeout_error", "timeout_error", never_retry=True),
        _spec("tenant_queue_full", 429, "rate_limit_error", "rate_limit_error", refusal=True),
        _spec("displaced", 429, "rate_limit_error", "rate_limit_error", refusal=True),
        _spec("rate_limit_exceeded", 429, "rate_limit_error", "rate_limit_error", refusal=True),
        _spec("insufficient_quota", 429, "insufficient_quota", "rate_limit_error", never_retry=True),
        _spec("queue_full", 503, _OVER, _OVER, refusal=True),
        _spec("queue_bytes_full", 503, _OVER, _OVER, refusal=True),
        _spec("queue_timeout", 503, _OVER, _OVER, refusal=True),
        _spec("deadline_unreachable", 503, _OVER, _OVER, refusal=True),
        _spec("no_backend", 503, _OVER, _OVER, refusal=True),
        _spec("shutting_down", 503, _OVER, _OVER, refusal=True),
        _spec("deadline_exceeded", 504, "timeout_error", "timeout_error"),
        _spec("upstream_unreachable", 502, "api_error", "api_error"),
        _spec("upstream_reset", 502, "api_error", "api_error"),
        _spec("upstream_error", 502, "api_error", "api_error"),
        _spec("upstream_incomplete", 502, "api_error", "api_error"),
        _spec("upstream_protocol", 502, "api_error", "api_error"),
        _spec("upstream_auth", 502, "api_error", "api_error", never_retry=True),
        _spec("first_content_timeout", 504, "timeout_error", "timeout_error"),
        _spec("idle_timeout", 504, "timeout_error", "timeout_error"),
        _spec("internal", 500, "api_error", "api_error"),
    )
)


@dataclass(slots=True)
class MeshError(Exception):
    """An error on its way to the caller.

    `message` is safe to send and tells the person what to do next. `status` overrides the table's
    (`admission.overload_status`, an upstream's own 4xx). Times are in seconds.
    """

    code: str
    message: str
    param: str | None = None
    status: int | None = None
    retry_after_s: float | None = None
    close: bool = False  # the connection cannot be used further
    details: dict[str, object] = field(default_factory=dict)  # for the operator's log, never sent
    told: dict[str, float] = field(default_factory=dict)  # further members of the error's body

    @property
    def spec(self) -> ErrorSpec:
        """The row of the table for `code`."""
        return ERRORS[self.code]

    @property
    def http_status(self) -> int:
        """The status to answer with."""
        return self.status if self.status is not None else ERRORS[self.code].status
