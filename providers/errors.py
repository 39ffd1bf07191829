"""Errors a provider may raise; each class names what the caller should do.

ProviderError
  CallerError      show it, do not retry
                   BadRequest, ContextTooLong, ContentFiltered
  NotPermitted     refuse the request: it may not be sent there, whatever has led it there
  CredentialError  our key or account is refused; go elsewhere and tell the operator
  CapacityError    go elsewhere now, come back after `retry_after_s`
                   RateLimited, Overloaded, Unavailable
  DeliveryError    outcome unknown, may be billed
                   FirstTokenTimeout, StreamStalled, TotalTimeout, BadWire, UpstreamFault,
                   ConnectionLost
                     StaleConnection   a kept socket was closed as it was used: ask again at once
  NotSent          nothing reached the upstream: connect failure, refused host
                     NoConnectionFree  all that we allow ourselves are in use: come back
                     AddressRefused    the name led where it must not
"""

from __future__ import annotations

from enum import StrEnum


class Billing(StrEnum):
    """What is known about the bill of an attempt that failed."""

    NONE = "none"
    """The upstream refused before generating, or never saw the request."""
    UNKNOWN = "unknown"
    """The upstream may have generated and may bill."""


class ProviderError(Exception):
    """An attempt failed.

    Attributes:
        message: One sentence for the client; names the deployment's fault, never a secret or a
            prompt.
        status: The upstream's HTTP status, None when there was none.
        code: The upstream's own machine-readable code, None when it gave none.
        param: The request parameter that the upstream blames, None when it named none.
        retry_after_s: Seconds the upstream asked to wait, None when it did not say.
        should_retry: What the upstream itself says about asking it again (`x-should-retry`), None
            when it did not say.
        billing: Whether the attempt may be billed.
        upstream_request_id: The upstream's id of the request, None when it gave none.
    """

    billing: Billing = Billing.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
        upstream_request_id: str | None = None,
    ) -> None:
        """Keep the facts that routing, the client's answer and the ledger need."""
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        self.upstream_request_id = upstream_request_id


class CallerError(ProviderError):
    """The request itself is at fault: show it to the client and do not try elsewhere."""

    billing = Billing.NONE


class BadRequest(CallerError):
    """The upstream refused the request as malformed or unsupported."""


class ContextTooLong(CallerError):
    """Prompt or prompt plus output does not fit; a deployment with a larger window may serve it."""


class ContentFiltered(CallerError):
    """The upstream's content filter refused the prompt."""


class NotPermitted(ProviderError):
    """The request's permit does not name the deployment, or not at this address: a fault of ours.

    Nothing was sent, and nobody else is asked: who has led the request here may err again.
    """

    billing = Billing.NONE


class CredentialError(ProviderError):
    """The upstream refused our key, account or model access."""

    billing = Billing.NONE


class CapacityError(ProviderError):
    """The upstream cannot serve now: go elsewhere, come back after `retry_after_s`."""

    billing = Billing.NONE


class RateLimited(CapacityError):
    """A quota of ours at the upstream is used up."""


class Overloaded(CapacityError):
    """The upstream says that it is overloaded."""


class Unavailable(CapacityError):
    """The upstream is not serving (starting, draining) and says so before generating."""


class DeliveryError(ProviderError):
    """The outcome is unknown: the upstream may have generated and may bill."""


class FirstTokenTimeout(DeliveryError):
    """No content event came within the first-token deadline."""


class StreamStalled(DeliveryError):
    """The stream fell silent for longer than the between-tokens deadline."""


class TotalTimeout(DeliveryError):
    """The attempt outlived its total deadline."""


class BadWire(DeliveryError):
    """The upstream sent what its wire format does not allow."""


class ConnectionLost(DeliveryError):
    """The connection broke after the request had been sent."""


class StaleConnection(ConnectionLost):
    """A kept connection was closed before any byte of an answer came on it.

    Most likely the upstream had already given it up as idle, and another connection will do.
    Whether it read the request first cannot be known (RFC 9110 section 9.2.2), so the attempt may
    be billed.
    """


class UpstreamFault(DeliveryError):
    """The upstream answered 5xx or sent an error event after it had begun."""


class NotSent(ProviderError):
    """Nothing reached the upstream: name, connect or TLS failed, or the host is refused."""

    billing = Billing.NONE


class NoConnectionFree(NotSent):
    """Every connection that the configuration allows is in use, and none came free in time."""


class AddressRefused(NotSent):
    """The upstream's name led to addresses that may not be connected to, or not from there.

    Which ones is in the log and not in the message, which the client sees.
    """
