"""What the gateway itself refuses, one class per code of the contract's error table.

GatewayError
  CallerFault                the client must change the request
    InvalidRequest           bad JSON, wrong type, bad header
    UnsupportedParameter     no candidate can honour a parameter
    ContextLengthExceeded    too long for every candidate
    MaxUsdExceeded           no candidate stays within the request's own ceiling
    InvalidField           an unknown or malformed field of the admin API
    KeyConflict            a key of that name is in use, or is kept in the configuration file
    BudgetConflict         the budget is kept in the configuration file
    FinanceConflict        the books do not allow it now
    PersonConflict         somebody has this login name
    BodyTooSlow            the body did not arrive
    HeadersTooLarge        request line and headers are over 64 KiB
    PromptOverLimit          longer than a limit of tokens per minute ever allows at once
    BodyTooLarge, UnsupportedMediaType, MethodNotAllowed, RouteNotFound, ModelNotFound, KeyNotFound,
    BudgetNotFound, PersonNotFound, ReservationNotFound
  AccessFault                the key must change
    InvalidApiKey, ModelNotAllowed, PrivacyDenied, AdminRequired, RoleRequired,
    ForeignCall
    UpstreamForbidden        every upstream refuses this account, country or use
  BudgetExceeded             a budget must grow, or start again
  CapacityFault              come back later           (retry_after_s)
    RateLimitExceeded, UpstreamRateLimited, PrivateCapacityUnavailable, NoHealthyDeployment,
    Draining, LedgerUnavailable, BudgetUnavailable
  UpstreamFailed             every attempt failed      UpstreamTimedOut
  InternalFault              ours; the client gets the request id and nothing else

`gateway/http/errors.py` holds the only table from class to status and code.
"""

from __future__ import annotations

from collections.abc import Sequence


class GatewayError(Exception):
    """A request ends with an error of ours.

    Attributes:
        message: One sentence for the client: what is wrong and the mend; no secret, no content.
        param: The request parameter at fault, None when none is.
        retry_after_s: Seconds after which trying again makes sense, None when it never does.
        upstream_code: A more precise code that the upstream gave, None when it gave none.
        deployment: The deployment that was tried last, None when none was.
        attempts: How many attempts were made.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        upstream_code: str | None = None,
    ) -> None:
        """Keep what the answer needs."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.upstream_code = upstream_code
        self.deployment: str | None = None
        self.attempts = 0


class CallerFault(GatewayError):
    """The client must change the request."""


class InvalidRequest(CallerFault):
    """Bad JSON, a wrong type, a bad header; also what an upstream refused as malformed."""


class UnsupportedParameter(CallerFault):
    """No candidate can honour a parameter."""


class ContextLengthExceeded(CallerFault):
    """The prompt is too long for every candidate."""


class MaxUsdExceeded(CallerFault):
    """No candidate stays within the ceiling that the request set for itself."""


class PromptOverLimit(CallerFault):
    """The prompt is longer than a limit of tokens per minute ever allows at once."""


class BodyTooLarge(CallerFault):
    """The body is over `server.max_body_mib`."""


class BodyTooSlow(CallerFault):
    """Nothing of the body came for too long."""


class HeadersTooLarge(CallerFault):
    """The request line and the headers are longer than any request needs."""


class UnsupportedMediaType(CallerFault):
    """The body is not JSON by its own declaration."""


class MethodNotAllowed(CallerFault):
    """The route exists for another method.

    Attributes:
        allowed: The methods that the route takes.
    """

    def __init__(self, message: str, *, allowed: Sequence[str]) -> None:
        """Keep the methods for the `Allow` header."""
        super().__init__(message)
        self.allowed = tuple(allowed)


class RouteNotFound(CallerFault):
    """No such path."""


class ModelNotFound(CallerFault):
    """No model, alias or deployment of that name; the message lists near ones."""


class InvalidField(CallerFault):
    """A field of the admin API is unknown, missing, ill-typed or names nothing that exists."""


class KeyConflict(CallerFault):
    """A key of that name is in use, or the key can only be changed where it was declared."""


class PersonConflict(CallerFault):
    """Somebody has this login name already."""


class PersonNotFound(CallerFault):
    """No person of that id."""


class KeyNotFound(CallerFault):
    """No key of that id."""


class BudgetConflict(CallerFault):
    """The budget can only be changed where it was declared."""


class BudgetNotFound(CallerFault):
    """No budget of that name."""


class ReservationNotFound(CallerFault):
    """Nothing that is reserved for a worker of that name has expired."""


class FinanceConflict(CallerFault):
    """The state of the books does not allow what was asked; the message says what comes first."""


class FinanceNotFound(CallerFault):
    """No such import, run, proposal or month."""


class AccessFault(GatewayError):
    """The key must change."""


class InvalidApiKey(AccessFault):
    """No key, a bad key, a revoked or expired key."""


class ModelNotAllowed(AccessFault):
    """The key may not use the model."""


class PrivacyDenied(AccessFault):
    """No deployment could ever satisfy the request's tags."""


class AdminRequired(AccessFault):
    """The route is the administrator's; the key is a team's."""


class ForeignCall(AccessFault):
    """A call with a session's cookie that another site may have made."""


class RoleRequired(AccessFault):
    """The roles of whoever asks do not include this."""


class UpstreamForbidden(AccessFault):
    """Every upstream refuses the account, the country or the use; another request is no help."""


class BudgetExceeded(GatewayError):
    """A budget that blocks has no room for what the request may cost."""


class CapacityFault(GatewayError):
    """Come back later."""


class RateLimitExceeded(CapacityFault):
    """A limit of ours has no room for the request now; the message names it."""


class UpstreamRateLimited(CapacityFault):
    """Every attempt met a quota at the upstream."""


class PrivateCapacityUnavailable(CapacityFault):
    """Allowed deployments exist for these tags, and none can serve now."""


class NoHealthyDeployment(CapacityFault):
    """Deployments exist, and none can serve now."""


class Draining(CapacityFault):
    """This process is shutting down."""


class Overloaded(CapacityFault):
    """This process computes more than it has time for; the request was not looked at."""


class LedgerUnavailable(CapacityFault):
    """Attempts cannot be journaled (disk full, failed disk), so none is dispatched."""


class BudgetUnavailable(CapacityFault):
    """Whether a budget has room is not known now, so nothing is dispatched."""


class UpstreamFailed(GatewayError):
    """Every attempt failed; the message lists deployments and reasons."""


class UpstreamTimedOut(UpstreamFailed):
    """Every attempt failed, the last one by a deadline, or the request's whole time is over."""


class InternalFault(GatewayError):
    """A bug of ours; details are in the log under the request id."""
