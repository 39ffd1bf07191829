"""In which order a decision's candidates are tried, and when to stop; pure.

Every candidate once, in the decision's order, then again from the first, until the attempts or the
seconds are used up. A deployment that is tried again gets a pause: what it asked for, else a
growing one; where that is too long another one is tried again instead. A fault of the caller ends
it at once, except that a prompt too long for one window may fit another deployment's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from gateway import errors as gateway_errors
from providers.errors import (
    BadRequest,
    CallerError,
    CapacityError,
    ContentFiltered,
    ContextTooLong,
    CredentialError,
    FirstTokenTimeout,
    NotSent,
    ProviderError,
    RateLimited,
    StreamStalled,
    TotalTimeout,
)

FIRST_PAUSE_S = 0.25
PAUSE_S_MAX = 8.0
EMPTY_ANSWER_RETRIES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt.

    Attributes:
        deployment: Which one.
        error: How.
    """

    deployment: str
    error: ProviderError


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What to do after a failure.

    Attributes:
        candidate: Index into the decision's candidates.
        pause_s: Seconds to wait first.
    """

    candidate: int
    pause_s: float


def next_step(
    failures: Sequence[Failure],
    *,
    candidates: Sequence[str],
    attempts_max: int,
    elapsed_s: float,
    within_s: float,
    rng: random.Random,
) -> Next | None:
    """Decide what follows the last failure; None when the request has failed.

    Args:
        failures: All failures so far, at least one.
        candidates: Deployments in the decision's order.
        attempts_max: Attempts in all.
        elapsed_s: Since the first attempt began.
        within_s: No attempt starts later than this.
        rng: For jitter.
    """
    if len(failures) >= attempts_max or elapsed_s >= within_s:
        return None
    last = failures[-1].error
    if isinstance(last, CallerError) and not isinstance(last, ContextTooLong):
        return None
    refused = {
        f.deployment for f in failures if isinstance(f.error, ContextTooLong | CredentialError)
    }
    tried = Counter(failure.deployment for failure in failures)
    # The sort is stable: of those tried equally often the decision's order holds.
    for index in sorted(range(len(candidates)), key=lambda index: tried[candidates[index]]):
        if candidates[index] in refused:
            continue
        pause_s = _pause_s(failures, candidates[index], rng)
        if elapsed_s + pause_s < within_s:
            return Next(candidate=index, pause_s=pause_s)
    return None


def _pause_s(failures: Sequence[Failure], deployment: str, rng: random.Random) -> float:
    earlier = [failure.error for failure in failures if failure.deployment == deployment]
    if not earlier:
        return 0.0
    asked_s = earlier[-1].retry_after_s or 0.0
    own_s = min(FIRST_PAUSE_S * 2.0 ** (len(earlier) - 1), PAUSE_S_MAX)
    return max(asked_s, own_s * rng.uniform(0.5, 1.0))


def final_error(failures: Sequence[Failure]) -> gateway_errors.GatewayError:
    """The error that the client gets once no attempt is left.

    The caller's own fault is shown as such. A quota is shown as a quota only when every attempt met
    one, so that a client never waits for a quota while the real fault is another.
    """
    last = failures[-1].error
    if isinstance(last, CallerError):
        return _caller_fault(last)
    trail = "; ".join(f"{f.deployment}: {f.error.message}" for f in failures)
    waits = [f.error.retry_after_s for f in failures if f.error.retry_after_s is not None]
    retry_after_s = min(waits) if waits else None
    if all(isinstance(f.error, RateLimited) for f in failures):
        return gateway_errors.UpstreamRateLimited(
            f"every deployment is out of quota: {trail}", retry_after_s=retry_after_s or 1.0
        )
    if all(isinstance(f.error, CapacityError) for f in failures):
        return gateway_errors.NoHealthyDeployment(
            f"no deployment can serve now: {trail}", retry_after_s=retry_after_s or 1.0
        )
    if all(isinstance(f.error, CredentialError) for f in failures):
        # An upstream's 401 is about our key, which is the operator's fault and not the client's.
        if last.status == HTTPStatus.FORBIDDEN:
            return gateway_errors.UpstreamForbidden(
                f"every attempt was refused: {trail}", upstream_code=last.code
            )
        if last.status == HTTPStatus.NOT_FOUND:
            return gateway_errors.ModelNotFound(
                f"no deployment has this model: {trail}", param="model"
            )
    if isinstance(last, FirstTokenTimeout | StreamStalled | TotalTimeout):
        return gateway_errors.UpstreamTimedOut(f"every attempt failed: {trail}")
    return gateway_errors.UpstreamFailed(f"every attempt failed: {trail}")


def _caller_fault(error: CallerError) -> gateway_errors.GatewayError:
    if isinstance(error, ContextTooLong):
        return gateway_errors.ContextLengthExceeded(error.message, param=error.param or "messages")
    code = "content_filter" if isinstance(error, ContentFiltered) else None
    assert isinstance(error, BadRequest | ContentFiltered)
    return gateway_errors.InvalidRequest(
        error.message, param=error.param, upstream_code=error.code or code
    )


def was_refused(error: ProviderError) -> bool:
    """Whether the upstream certainly generated nothing, so that the attempt costs nothing."""
    return isinstance(error, CallerError | CredentialError | CapacityError | NotSent)
