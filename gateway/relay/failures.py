"""What a failed attempt means for the rest of its request; pure.

One table says for each class of `providers.errors` whether the request goes on and how often the
same deployment may be asked again. The rule behind it: a refusal that certainly cost nothing may be
repeated as long as the policy allows; what may have been billed is repeated at one deployment only
twice; a deadline is never repeated where it passed, since the same deployment would be as slow and
might bill twice. Another deployment may always be asked, unless the request itself is at fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from providers import errors
from providers.errors import Billing, CredentialError, ProviderError

BILLED_REPEATS_MAX = 2
"""How often one deployment is asked again after failures that may have been billed."""

EMPTY_ANSWER_RETRIES = 1
"""How often an answer without content is asked for again; the next empty one is the answer."""

_ACCOUNT_STATUSES = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.PAYMENT_REQUIRED})
_ACCOUNT_CODES = frozenset(
    {
        "invalid_api_key",
        "authentication_error",
        "insufficient_quota",
        "billing_error",
        "billing_hard_limit_reached",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What follows a failure of one class.

    Attributes:
        ends_request: Whether nobody else is asked either: the request itself is at fault.
        repeats_max: How many limited failures one deployment may have and still be asked again;
            None: as many as the policy allows.
        is_repeated_at_once: Whether, the first time, the same deployment comes next without pause.
    """

    ends_request: bool = False
    repeats_max: int | None = None
    is_repeated_at_once: bool = False


_NEVER_THERE_AGAIN = Rule(repeats_max=0)
_MAYBE_BILLED = Rule(repeats_max=BILLED_REPEATS_MAX)
_AS_OFTEN_AS_ALLOWED = Rule()

RULES: Mapping[type[ProviderError], Rule] = {
    errors.BadRequest: Rule(ends_request=True),
    errors.ContentFiltered: Rule(ends_request=True),
    errors.ContextTooLong: _NEVER_THERE_AGAIN,
    errors.NotPermitted: Rule(ends_request=True),
    errors.CredentialError: _NEVER_THERE_AGAIN,
    errors.RateLimited: _AS_OFTEN_AS_ALLOWED,
    errors.Overloaded: _AS_OFTEN_AS_ALLOWED,
    errors.Unavailable: _AS_OFTEN_AS_ALLOWED,
    errors.NotSent: _AS_OFTEN_AS_ALLOWED,
    errors.AddressRefused: _NEVER_THERE_AGAIN,
    errors.NoConnectionFree: _AS_OFTEN_AS_ALLOWED,
    errors.FirstTokenTimeout: _NEVER_THERE_AGAIN,
    errors.StreamStalled: _NEVER_THERE_AGAIN,
    errors.TotalTimeout: _NEVER_THERE_AGAIN,
    errors.BadWire: _MAYBE_BILLED,
    errors.UpstreamFault: _MAYBE_BILLED,
    errors.ConnectionLost: _MAYBE_BILLED,
    # An idle connection that the upstream closed just as it was used says nothing about its health.
    # Whether the request was read before the close is unknown all the same, so it counts as one
    # that may have been billed.
    errors.StaleConnection: Rule(repeats_max=BILLED_REPEATS_MAX, is_repeated_at_once=True),
}
"""Every class that a provider raises; one of an adapter's own has the row of its nearest base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt.

    Attributes:
        deployment: Which one.
        error: How.
        ended_s: When, in seconds since the first attempt of the request began.
        paused_s: For how long from then all requests avoid the deployment, None when they do not.
    """

    deployment: str
    error: ProviderError
    ended_s: float = 0.0
    paused_s: float | None = None

    def asked_left_s(self, elapsed_s: float) -> float | None:
        """Seconds left of the wait that the upstream asked for, None when it asked for none.

        Args:
            elapsed_s: The present, in seconds since the first attempt began.
        """
        return self._left_s(self.error.retry_after_s, elapsed_s)

    def wait_left_s(self, elapsed_s: float) -> float | None:
        """Seconds until the deployment is worth another try, None when nothing is known.

        Args:
            elapsed_s: The present, in seconds since the first attempt began.
        """
        asked_s = self.error.retry_after_s
        return self._left_s(self.paused_s if asked_s is None else asked_s, elapsed_s)

    def _left_s(self, wait_s: float | None, elapsed_s: float) -> float | None:
        return None if wait_s is None else max(0.0, self.ended_s + wait_s - elapsed_s)


def rule_of(error: ProviderError) -> Rule:
    """The rule of an error's class, or of its nearest base that has one."""
    for kind in type(error).__mro__:
        if (rule := RULES.get(kind)) is not None:
            return rule
    return _MAYBE_BILLED


def may_repeat(failures: Sequence[Failure]) -> bool:
    """Whether a deployment may be asked again; not where it said itself that it is no use.

    Args:
        failures: All of this request at that deployment.
    """
    if any(failure.error.should_retry is False for failure in failures):
        return False
    limits = [
        rule.repeats_max
        for failure in failures
        if (rule := rule_of(failure.error)).repeats_max is not None
    ]
    return not limits or len(limits) <= min(limits)


def refuses_account(error: ProviderError) -> bool:
    """Whether every deployment of the same provider would answer the same: key or credit is bad."""
    return isinstance(error, CredentialError) and (
        error.status in _ACCOUNT_STATUSES or error.code in _ACCOUNT_CODES
    )


def was_refused(error: ProviderError) -> bool:
    """Whether the upstream certainly generated nothing, so that the attempt costs nothing."""
    return error.billing is Billing.NONE
