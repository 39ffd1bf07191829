"""What the client is told once no attempt is left; pure.

The caller's own fault is shown as such. A quota is shown as a quota, and a lack of capacity as
that, only when nothing else went wrong, so that a client never waits while the real fault is
another. A prompt that was too long for some deployments is the client's fault only when it was too
long for all that were asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus

from gateway import errors
from gateway.relay.failures import Failure
from providers.errors import (
    BadRequest,
    CallerError,
    CapacityError,
    ContentFiltered,
    ContextTooLong,
    CredentialError,
    FirstTokenTimeout,
    NoConnectionFree,
    NotPermitted,
    NotSent,
    RateLimited,
    StreamStalled,
    TotalTimeout,
)

RETRY_AFTER_DEFAULT_S = 1.0
"""Where nobody named a wait, or the one named is over."""

REASON_CHARS_MAX = 200
"""Of one attempt's reason, in a message that lists several."""


def final_error(
    failures: Sequence[Failure],
    *,
    elapsed_s: float = 0.0,
    total_s: float | None = None,
    is_narrowed_by_privacy: bool = False,
) -> errors.GatewayError:
    """The error that the client gets.

    Args:
        failures: All of the request's, at least one.
        elapsed_s: The present, in seconds since the first attempt began.
        total_s: The request's whole deadline, None for none.
        is_narrowed_by_privacy: Whether tags kept deployments of the model out of the decision.
    """
    last = failures[-1].error
    if isinstance(last, NotPermitted):
        return errors.PrivacyDenied(
            f"{failures[-1].deployment} is not where this request may be sent; the egress guard"
            " stopped it before anything was sent"
        )
    if isinstance(last, CallerError) and not isinstance(last, ContextTooLong):
        return _caller_fault(last)
    telling = [one for one in failures if not isinstance(one.error, ContextTooLong)]
    if not telling:
        assert isinstance(last, ContextTooLong)
        return _caller_fault(last)
    trail = trail_of(failures)
    if (found := _lack(telling, trail, is_narrowed_by_privacy=is_narrowed_by_privacy)) is not None:
        found.retry_after_s = soonest_s(telling, elapsed_s) or RETRY_AFTER_DEFAULT_S
        return found
    if all(isinstance(one.error, CredentialError) for one in telling):
        # An upstream's 401 is about our key, which is the operator's fault and not the client's.
        refusal = telling[-1].error
        if refusal.status == HTTPStatus.FORBIDDEN:
            return errors.UpstreamForbidden(
                f"every attempt was refused: {trail}", upstream_code=refusal.code
            )
        if refusal.status == HTTPStatus.NOT_FOUND:
            return errors.ModelNotFound(f"no deployment has this model: {trail}", param="model")
    is_over = total_s is not None and elapsed_s >= total_s
    if is_over or isinstance(telling[-1].error, FirstTokenTimeout | StreamStalled | TotalTimeout):
        return errors.UpstreamTimedOut(f"every attempt failed: {trail}")
    return errors.UpstreamFailed(f"every attempt failed: {trail}")


def _lack(
    failures: Sequence[Failure], trail: str, *, is_narrowed_by_privacy: bool
) -> errors.CapacityFault | None:
    """A fault that waiting mends, None where another kind of failure is among them."""
    if all(isinstance(one.error, RateLimited) for one in failures):
        return errors.UpstreamRateLimited(f"every deployment is out of quota: {trail}")
    if is_narrowed_by_privacy:
        # A server of one's own that is down refuses connections. It is still the only one that may
        # be asked, so its client is told to come back.
        if all(isinstance(one.error, CapacityError | NotSent) for one in failures):
            return errors.PrivateCapacityUnavailable(
                f"deployments that satisfy the privacy tags cannot serve now: {trail}"
            )
        return None
    # Connections that are all in use are a lack of ours, which passes like one of the upstream's.
    if all(isinstance(one.error, CapacityError | NoConnectionFree) for one in failures):
        return errors.NoHealthyDeployment(f"no deployment can serve now: {trail}")
    return None


def soonest_s(failures: Sequence[Failure], elapsed_s: float) -> float | None:
    """Seconds until the first of the deployments is worth another try, None when none said so."""
    latest = {failure.deployment: failure for failure in failures}
    waits_s = [
        left_s
        for failure in latest.values()
        if (left_s := failure.wait_left_s(elapsed_s)) is not None
    ]
    return min(waits_s, default=None)


def trail_of(failures: Sequence[Failure]) -> str:
    """Every deployment with its reason, in the order of the attempts, equal ones once."""
    counts = Counter(_reason(failure) for failure in failures)
    return "; ".join(
        reason if count == 1 else f"{reason} ({count} times)" for reason, count in counts.items()
    )


def _reason(failure: Failure) -> str:
    text = failure.error.message.rstrip(".")[:REASON_CHARS_MAX]
    return text if text.startswith(failure.deployment) else f"{failure.deployment}: {text}"


def _caller_fault(error: CallerError) -> errors.GatewayError:
    if isinstance(error, ContextTooLong):
        return errors.ContextLengthExceeded(error.message, param=error.param or "messages")
    code = "content_filter" if isinstance(error, ContentFiltered) else None
    assert isinstance(error, BadRequest | ContentFiltered)
    return errors.InvalidRequest(error.message, param=error.param, upstream_code=error.code or code)
