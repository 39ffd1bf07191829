"""Every class of failure that a provider raises; written out, as no table of ours shall choose them."""

from __future__ import annotations

from providers.errors import (
    AddressRefused,
    BadRequest,
    BadWire,
    ConnectionLost,
    ContentFiltered,
    ContextTooLong,
    CredentialError,
    FirstTokenTimeout,
    NoConnectionFree,
    NotPermitted,
    NotSent,
    Overloaded,
    RateLimited,
    StaleConnection,
    StreamStalled,
    TotalTimeout,
    Unavailable,
    UpstreamFault,
)

KINDS = (
    AddressRefused, BadRequest, BadWire, ConnectionLost, ContentFiltered, ContextTooLong,
    CredentialError,
    FirstTokenTimeout, NoConnectionFree, NotPermitted, NotSent, Overloaded, RateLimited,
    StaleConnection, StreamStalled, TotalTimeout, Unavailable, UpstreamFault,
)  # fmt: skip
