"""From what an upstream says went wrong to the class that names what to do about it.

The body is asked before the status, because statuses lie: Together answers 403 and Groq 413 for
lengths and quotas, aggregators send errors inside a 200. Only the caller's own faults carry the
upstream's words, cut and with secrets masked; every other message is ours, so that no prompt, key
or internal of an upstream travels on.

Source: error pages of the vendors and server sources, see the design's provider reference 0.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from providers.codecs.retry_after import retry_after_s
from providers.errors import (
    BadRequest,
    CapacityError,
    ContentFiltered,
    ContextTooLong,
    CredentialError,
    Overloaded,
    ProviderError,
    RateLimited,
    Unavailable,
    UpstreamFault,
)

MESSAGE_MAX_CHARS = 500
_TEXT_MAX_CHARS = 8 * 1024
"""As much of a text is looked at: inside a 200 an error can have the size of an answer."""

_CODE_MAX_CHARS = 64

_NOTHING = msgspec.Raw(b"null")
_FILTERED = msgspec.Raw(b'"content_filter"')

_CLASS_BY_WORD: Mapping[str, type[ProviderError]] = {
    "context_length_exceeded": ContextTooLong,
    "exceed_context_size_error": ContextTooLong,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "rate_limited": RateLimited,
    "too_many_requests": RateLimited,
    "dynamic_request_limited": RateLimited,
    "dynamic_token_limited": RateLimited,
    "throttlingexception": RateLimited,
    "servicequotaexceededexception": RateLimited,
    "modelnotreadyexception": Unavailable,
    "accessdeniedexception": CredentialError,
    "resourcenotfoundexception": CredentialError,
    "modeltimeoutexception": UpstreamFault,
    "modelerrorexception": UpstreamFault,
    "insufficient_quota": CredentialError,
    "billing_error": CredentialError,
    "billing_hard_limit_reached": CredentialError,
    "invalid_api_key": CredentialError,
    "authentication_error": CredentialError,
    "permission_error": CredentialError,
    "model_not_found": CredentialError,
    "not_found_error": CredentialError,
    "notfounderror": CredentialError,
    "overloaded_error": Overloaded,
    "overloaded": Overloaded,
    "engine_overloaded": Overloaded,
    "resource_unavailable": Overloaded,
    "capacity_exceeded": Overloaded,
    "provider_unavailable": Unavailable,
    "unavailable_error": Unavailable,
    "service_unavailable": Unavailable,
    "content_filter": ContentFiltered,
    "content_policy_violation": ContentFiltered,
}
_CLASS_BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: CredentialError,
    402: CredentialError,
    403: CredentialError,
    404: CredentialError,
    405: CredentialError,
    # What is wrong here is how this upstream, or a proxy on the way, is reached and configured.
    406: CredentialError,
    407: CredentialError,
    408: UpstreamFault,
    409: Unavailable,
    410: CredentialError,
    411: CredentialError,
    412: CredentialError,
    414: CredentialError,
    417: CredentialError,
    421: CredentialError,
    424: UpstreamFault,
    425: Unavailable,
    426: CredentialError,
    429: RateLimited,
    431: CredentialError,
    451: CredentialError,
    498: Overloaded,
    499: UpstreamFault,
    503: Unavailable,
    529: Overloaded,
}
_SHOULD_RETRY: Mapping[str, bool] = {"true": True, "false": False}
_LENGTH_STATUSES = frozenset({None, 200, 400, 403, 413, 422, 500})
_LENGTH_TEXT = re.compile(
    r"maximum context length|context (?:length|window|size)|prompt is too long|input is too long"
    r"|too many (?:input )?tokens|reduce the length|maximum number of tokens|longer than the model"
    r"|must be <= \d+\. given",
    re.IGNORECASE,
)
_OUTPUT_TEXT = re.compile(
    r"supports at most \d+ completion tokens|maximum allowed number of output tokens"
    r"|max(?:_completion|_output)?_tokens.{0,3}(?:is too large|exceeds)"
    r"|max(?:_completion|_output)?_tokens.{0,3}must be less than or equal to"
    r"|maximum tokens you requested exceeds",
    re.IGNORECASE,
)
"""The answer that the client allows is longer than this model can write; another one may."""

_OVERLOAD_TEXT = re.compile(r"overload|at capacity|queue is full", re.IGNORECASE)
_INVALID_WORDS = ("invalid_request", "badrequest", "validation", "unsupported", "invalid_value")
_SECRET_TEXT = re.compile(
    r"(?i)\b(bearer\s+|(?:api[_-]?key|key|token|secret)=)[^\s\"'&]{4,}"
    r"|\b(?:sk|gsk|pk|rk|fw|csk|hf|tgp|r8|xai)[-_][\w-]{12,}"
    r"|\bAIza[\w-]{20,}"
    r"|\borg[-_]\w{8,}"
)
_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorContext:
    """What an error message may and must not name.

    Attributes:
        deployment: The name to show, `provider/model-id`.
        secrets: Our credentials at the upstream; never shown, even when it echoes them.
        hosts: Where the upstream is; never shown either.
        now: The present instant, for dates in `Retry-After`.
        headers: The answer's headers, names in lower case.
        request_id: The upstream's id of the request.
    """

    deployment: str
    secrets: Sequence[str]
    now: datetime
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    request_id: str | None = None
    hosts: Sequence[str] = ()


class _ErrorObject(msgspec.Struct, gc=False):
    message: msgspec.Raw = _NOTHING
    type: msgspec.Raw = _NOTHING
    code: msgspec.Raw = _NOTHING
    param: msgspec.Raw = _NOTHING
    metadata: msgspec.Raw = _NOTHING


class _ErrorMetadata(msgspec.Struct, gc=False):
    error_type: msgspec.Raw = _NOTHING
    flagged_input: msgspec.Raw = _NOTHING


class _Envelope(msgspec.Struct, gc=False):
    error: msgspec.Raw = _NOTHING
    error_type: msgspec.Raw = _NOTHING
    message: msgspec.Raw = _NOTHING
    detail: msgspec.Raw = _NOTHING
    type: msgspec.Raw = _NOTHING
    code: msgspec.Raw = _NOTHING
    param: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING
    status_code: msgspec.Raw = _NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """An error body in one shape."""

    message: str = ""
    words: tuple[str, ...] = ()
    param: str | None = None
    status: int | None = None


def error_from_reply(status: int, body: bytes, *, context: ErrorContext) -> ProviderError:
    """Map an answer with a failing status.

    Args:
        status: The HTTP status, anything outside 2xx.
        body: The start of the body, in any of the vendors' shapes or none.
        context: What to name and what to hide.
    """
    return _error(status, _parse(body), context)


def error_from_body(body: bytes, *, context: ErrorContext) -> ProviderError:
    """Map an error that came inside a 200: an event of a stream or a whole answer.

    Its own numeric code, where it has one, stands in for the status.
    """
    fault = _parse(body)
    status = fault.status if fault.status is not None and 300 <= fault.status < 600 else None
    return _error(status, fault, context)


def _error(status: int | None, fault: _Fault, context: ErrorContext) -> ProviderError:
    # AWS names the class in a header, with an address behind a colon.
    aws_word = context.headers.get("x-amzn-errortype", "").partition(":")[0]
    words = (aws_word, *fault.words) if aws_word else fault.words
    kind = _class_of(status, words, fault.message)
    wait_s = None
    if issubclass(kind, CapacityError) or status in (402, 408, 409, 500, 502, 504):
        wait_s = retry_after_s(
            context.headers, fault.message, now=context.now, is_quota=issubclass(kind, RateLimited)
        )
    if status == 402 and wait_s is not None:
        # OpenRouter reserves credit for requests in flight: this much comes back by itself.
        kind = RateLimited
    code = next((_clean(word, context)[:_CODE_MAX_CHARS] for word in words), None)
    if issubclass(kind, BadRequest | ContextTooLong | ContentFiltered) and fault.message:
        message = _clean(fault.message, context)[:MESSAGE_MAX_CHARS]
    else:
        answer = "sent an error" if status is None else f"answered {status}"
        message = f"{context.deployment} {answer}{f' ({code})' if code else ''}."
    param = None if fault.param is None else _clean(fault.param, context)[:_CODE_MAX_CHARS]
    if param is None and kind is ContextTooLong and _OUTPUT_TEXT.search(fault.message):
        param = "max_tokens"
    return kind(
        message,
        status=status,
        code=code,
        param=param,
        retry_after_s=wait_s,
        should_retry=_SHOULD_RETRY.get(context.headers.get("x-should-retry", "")),
        upstream_request_id=context.request_id,
    )


def _class_of(status: int | None, words: Sequence[str], message: str) -> type[ProviderError]:
    for word in words:
        if (kind := _CLASS_BY_WORD.get(word.lower())) is not None:
            # Groq's 413: this one request is over the quota of a whole minute, so that waiting is
            # no use; a deployment with a larger quota may serve it.
            return ContextTooLong if status == 413 and kind is RateLimited else kind
    if status in _LENGTH_STATUSES and (
        _LENGTH_TEXT.search(message) or _OUTPUT_TEXT.search(message)
    ):
        return ContextTooLong
    if status is None:
        is_invalid = any(word.lower().startswith(_INVALID_WORDS) for word in words)
        if is_invalid:
            return BadRequest
        return Overloaded if _OVERLOAD_TEXT.search(message) else UpstreamFault
    if status == 503 and _OVERLOAD_TEXT.search(message):
        return Overloaded
    if (kind := _CLASS_BY_STATUS.get(status)) is not None:
        return kind
    if status < 400:
        # A redirect is never followed: the configured address is not the API.
        return CredentialError
    return BadRequest if status < 500 else UpstreamFault


def _parse(body: bytes) -> _Fault:
    """Read the shapes in the order: `error` object, `error` text, flat object, plain text."""
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Fault(message=body[: 4 * MESSAGE_MAX_CHARS].decode("utf-8", "replace"))
    outer_status = _number(envelope.status_code) or _number(envelope.status)
    try:
        inner = msgspec.json.decode(bytes(envelope.error), type=_ErrorObject | None)
    except msgspec.ValidationError:
        return _Fault(
            message=_text(envelope.error) or "",
            words=_words(envelope.error_type, envelope.code),
            status=outer_status or _number(envelope.code),
        )
    if inner is not None:
        return _Fault(
            message=_text(inner.message) or "",
            words=_words(inner.code, _metadata_word(inner.metadata), inner.type),
            param=_text(inner.param),
            status=outer_status or _number(inner.code),
        )
    return _Fault(
        message=_text(envelope.message) or _text(envelope.detail) or "",
        words=_words(envelope.code, envelope.type),
        param=_text(envelope.param),
        status=outer_status or _number(envelope.code),
    )


def _metadata_word(metadata: msgspec.Raw) -> msgspec.Raw:
    """OpenRouter's machine-readable word, which hides below `metadata`.

    A prompt that its moderation flagged comes as a 403 like a bad key does, without any word.
    """
    try:
        found = msgspec.json.decode(bytes(metadata), type=_ErrorMetadata | None)
    except msgspec.ValidationError:
        return _NOTHING
    if found is None:
        return _NOTHING
    return _FILTERED if _text(found.flagged_input) is not None else found.error_type


def _words(*raws: msgspec.Raw) -> tuple[str, ...]:
    """The machine-readable words among codes and types; numbers say no more than the status."""
    texts = (_text(raw) for raw in raws)
    return tuple(text for text in texts if text and not text.isdigit() and text != "error")


def _text(raw: msgspec.Raw) -> str | None:
    """A string value, None for anything else."""
    value = bytes(raw)
    if not value.startswith(b'"'):
        return None
    try:
        return msgspec.json.decode(value, type=str)[:_TEXT_MAX_CHARS]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _number(raw: msgspec.Raw) -> int | None:
    """A status-like number, also when a vendor quotes it."""
    value = bytes(raw).strip(b'"')
    return int(value) if value.isdigit() and len(value) == 3 else None


def _clean(text: str, context: ErrorContext) -> str:
    """Mask our credentials, anything that looks like one, and where the upstream is."""
    for secret in context.secrets:
        if secret:
            text = text.replace(secret, f"…{secret[-4:] if len(secret) >= 12 else ''}")
    for host in context.hosts:
        if host:
            text = text.replace(host, "[upstream]")
    text = _SECRET_TEXT.sub("[masked]", text)
    return _CONTROL_CHARS.sub(" ", text).strip()
