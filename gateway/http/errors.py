"""The only table from error class to HTTP status and code, and the OpenAI-shaped body."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from gateway import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """How a class of errors looks on the wire.

    Attributes:
        status: HTTP status.
        type: OpenAI's `error.type`.
        code: `error.code`, unless the upstream gave a more precise one.
        limited_by: `x-fareway-limited-by`, empty where nothing is limited.
        forbids_retry: Whether `x-should-retry: false` goes along, so that SDKs do not repeat it.
    """

    status: int
    type: str
    code: str
    limited_by: str = ""
    forbids_retry: bool = False


_INVALID = "invalid_request_error"

ERROR_TABLE: dict[type[errors.GatewayError], ErrorRow] = {
    errors.InvalidRequest: ErrorRow(status=400, type=_INVALID, code=_INVALID),
    errors.UnsupportedParameter: ErrorRow(status=400, type=_INVALID, code="unsupported_parameter"),
    errors.ContextLengthExceeded: ErrorRow(
        status=400, type=_INVALID, code="context_length_exceeded"
    ),
    errors.MaxUsdExceeded: ErrorRow(status=400, type=_INVALID, code="max_usd_exceeded"),
    errors.InvalidApiKey: ErrorRow(status=401, type="authentication_error", code="invalid_api_key"),
    errors.BudgetExceeded: ErrorRow(
        status=402, type="insufficient_quota", code="budget_exceeded", forbids_retry=True
    ),
    errors.ModelNotAllowed: ErrorRow(status=403, type="permission_error", code="model_not_allowed"),
    errors.PrivacyDenied: ErrorRow(status=403, type="permission_error", code="privacy_denied"),
    errors.AdminRequired: ErrorRow(status=403, type="permission_error", code="admin_required"),
    errors.ForeignCall: ErrorRow(status=403, type="permission_error", code="csrf_required"),
    errors.RoleRequired: ErrorRow(status=403, type="permission_error", code="role_required"),
    errors.UpstreamForbidden: ErrorRow(
        status=403, type="permission_error", code="upstream_forbidden", forbids_retry=True
    ),
    errors.ModelNotFound: ErrorRow(status=404, type=_INVALID, code="model_not_found"),
    errors.PersonNotFound: ErrorRow(status=404, type=_INVALID, code="person_not_found"),
    errors.KeyNotFound: ErrorRow(status=404, type=_INVALID, code="key_not_found"),
    errors.BudgetNotFound: ErrorRow(status=404, type=_INVALID, code="budget_not_found"),
    errors.ReservationNotFound: ErrorRow(status=404, type=_INVALID, code="reservation_not_found"),
    errors.FinanceNotFound: ErrorRow(status=404, type=_INVALID, code="finance_not_found"),
    errors.RouteNotFound: ErrorRow(status=404, type=_INVALID, code="not_found"),
    errors.MethodNotAllowed: ErrorRow(status=405, type=_INVALID, code="method_not_allowed"),
    errors.BodyTooSlow: ErrorRow(status=408, type=_INVALID, code="request_timeout"),
    errors.KeyConflict: ErrorRow(
        status=409, type=_INVALID, code="key_conflict", forbids_retry=True
    ),
    errors.BudgetConflict: ErrorRow(
        status=409, type=_INVALID, code="budget_conflict", forbids_retry=True
    ),
    errors.FinanceConflict: ErrorRow(
        status=409, type=_INVALID, code="finance_conflict", forbids_retry=True
    ),
    errors.PersonConflict: ErrorRow(
        status=409, type=_INVALID, code="person_conflict", forbids_retry=True
    ),
    errors.BodyTooLarge: ErrorRow(status=413, type=_INVALID, code="request_too_large"),
    errors.PromptOverLimit: ErrorRow(
        status=413, type=_INVALID, code="request_too_large", limited_by="gateway"
    ),
    errors.UnsupportedMediaType: ErrorRow(status=415, type=_INVALID, code="unsupported_media_type"),
    errors.InvalidField: ErrorRow(status=422, type=_INVALID, code="invalid_field"),
    errors.HeadersTooLarge: ErrorRow(status=431, type=_INVALID, code="headers_too_large"),
    errors.RateLimitExceeded: ErrorRow(
        status=429, type="rate_limit_error", code="rate_limit_exceeded", limited_by="gateway"
    ),
    errors.UpstreamRateLimited: ErrorRow(
        status=429, type="rate_limit_error", code="upstream_rate_limited", limited_by="provider"
    ),
    errors.InternalFault: ErrorRow(
        status=500, type="server_error", code="internal_error", forbids_retry=True
    ),
    errors.UpstreamFailed: ErrorRow(
        status=502, type="server_error", code="upstream_error", forbids_retry=True
    ),
    errors.PrivateCapacityUnavailable: ErrorRow(
        status=503, type="server_error", code="private_capacity_unavailable"
    ),
    errors.NoHealthyDeployment: ErrorRow(
        status=503, type="server_error", code="no_healthy_deployment"
    ),
    errors.Draining: ErrorRow(status=503, type="server_error", code="draining"),
    errors.Overloaded: ErrorRow(status=503, type="server_error", code="overloaded"),
    errors.LedgerUnavailable: ErrorRow(status=503, type="server_error", code="ledger_unavailable"),
    errors.BudgetUnavailable: ErrorRow(status=503, type="server_error", code="budget_unavailable"),
    errors.UpstreamTimedOut: ErrorRow(
        status=504, type="server_error", code="upstream_timeout", forbids_retry=True
    ),
}

RETRY_AFTER_DEFAULT_S = 1.0
"""Named where nobody knows better: whoever may come back is told when."""

RETRY_AFTER_S_MAX = 3600
"""Longer waits are reported as this one: a client should come back and see."""


class _ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str


class _ErrorEnvelope(msgspec.Struct):
    error: _ErrorBody


def row_of(error: errors.GatewayError) -> ErrorRow:
    """The row of an error's class."""
    return ERROR_TABLE[type(error)]


def openai_body(error: errors.GatewayError) -> bytes:
    """The OpenAI-shaped JSON body of an error."""
    row = row_of(error)
    body = _ErrorBody(
        message=error.message,
        type=row.type,
        param=error.param,
        code=error.upstream_code or row.code,
    )
    return msgspec.json.encode(_ErrorEnvelope(error=body))


def openai_event(error: errors.GatewayError) -> bytes:
    """The error as one server-sent event, for a stream whose headers are out."""
    return b"data: " + openai_body(error) + b"\n\n"


def error_headers(error: errors.GatewayError) -> list[tuple[bytes, bytes]]:
    """Headers that an error adds: how long to wait, who limits, whether SDKs may repeat it."""
    row = row_of(error)
    headers: list[tuple[bytes, bytes]] = []
    if row.status in {429, 503}:
        asked_s = RETRY_AFTER_DEFAULT_S if error.retry_after_s is None else error.retry_after_s
        wait_s = min(max(asked_s, 0.0), RETRY_AFTER_S_MAX)
        headers.append((b"retry-after", str(math.ceil(wait_s)).encode()))
        headers.append((b"retry-after-ms", str(math.ceil(wait_s * 1000)).encode()))
    if row.limited_by:
        headers.append((b"x-fareway-limited-by", row.limited_by.encode()))
    if row.forbids_retry:
        headers.append((b"x-should-retry", b"false"))
    if isinstance(error, errors.MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    return headers
