"""The two steps of a login at the identity provider; what goes out is in `gateway.oidc.provider`.

Between the steps the browser keeps, sealed by us, what the answer has to match: state, nonce and
the PKCE verifier. Whoever brings another browser's answer matches none of them.

Source: OpenID Connect Core 1.0, 3.1; RFC 7636 (PKCE); RFC 9207 (issuer in the answer).
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.access.people import digest_of
from gateway.auth.keys import RandomBytes
from gateway.clock import Clock
from gateway.oidc.faults import BEGIN_AGAIN, OidcFault, not_trusted
from gateway.oidc.identity import (
    Claims,
    Identity,
    check_claims,
    check_email,
    grants_of,
    name_of,
)
from gateway.settings.login import OidcSettings

TRANSACTION_S = 600
"""How long somebody may take at the provider."""
_CODE_CHARACTERS_MAX = 4096
_DENIALS = frozenset(
    {"access_denied", "login_required", "consent_required", "interaction_required"}
)


class Provider(Protocol):
    """The identity provider, as the flow needs it; each raises `OidcFault`."""

    async def authorization_url(self, *, state: str, nonce: str, verifier: str) -> str:
        """Where to send the browser."""
        ...

    async def claims(self, *, code: str, verifier: str) -> Claims:
        """The claims of the ID token for a code, its signature checked and nothing else."""
        ...

    async def names_issuer_in_answers(self) -> bool:
        """Whether its answers say which provider they are from (RFC 9207)."""
        ...


class _Transaction(msgspec.Struct, array_like=True, frozen=True):
    state: str
    nonce: str
    verifier: str
    next_path: str
    begun_at_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The first step.

    Attributes:
        url: Where the browser goes.
        kept: What it has to bring back, to be sealed.
    """

    url: str
    kept: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcFlow:
    """Logins at one provider.

    Attributes:
        settings: The operator's.
        provider: The provider.
        clock: Time.
        random_bytes: A cryptographic source.
    """

    settings: OidcSettings
    provider: Provider
    clock: Clock
    random_bytes: RandomBytes

    @property
    def label(self) -> str:
        """What the button says."""
        return self.settings.label

    async def begin(self, next_path: str) -> Begun:
        """Make a login.

        Args:
            next_path: The page that was asked for; a path of ours.

        Raises:
            OidcFault: The provider does not answer.
        """
        state, nonce, verifier = (self._secret() for _ in range(3))
        url = await self.provider.authorization_url(state=state, nonce=nonce, verifier=verifier)
        kept = _Transaction(state, nonce, verifier, next_path, self._now_s())
        return Begun(url=url, kept=msgspec.msgpack.encode(kept))

    async def finish(self, answer: Mapping[str, str], kept: bytes | None) -> Identity:
        """Take the provider's answer.

        Args:
            answer: Query parameters of the callback.
            kept: What `begin` gave this browser, None when it brings nothing of ours.

        Raises:
            OidcFault: The answer is not to this login, or nobody that is let in.
        """
        transaction = _transaction(kept)
        if transaction is None:
            raise not_trusted("no_transaction")
        if self._now_s() - transaction.begun_at_s > TRANSACTION_S:
            raise OidcFault("too_slow", "this login took too long", mend=BEGIN_AGAIN)
        state = answer.get("state", "")
        if not hmac.compare_digest(
            state.encode("utf-8", "surrogatepass"), transaction.state.encode()
        ):
            raise not_trusted("wrong_state")
        issuer = answer.get("iss")
        if issuer is not None and issuer != self.settings.issuer:
            raise not_trusted("wrong_issuer")
        if "error" in answer:
            raise _denied(answer["error"])
        code = answer.get("code", "")
        if not 0 < len(code) <= _CODE_CHARACTERS_MAX:
            raise not_trusted("no_code")
        if issuer is None and await self.provider.names_issuer_in_answers():
            raise not_trusted("no_issuer")
        claims = await self.provider.claims(code=code, verifier=transaction.verifier)
        return self._identity(claims, transaction)

    def _identity(self, claims: Claims, transaction: _Transaction) -> Identity:
        now_s = self.clock.wall_us() / 1_000_000
        check_claims(claims, self.settings, nonce=transaction.nonce, now_s=now_s)
        check_email(claims, self.settings)
        return Identity(
            issuer=self.settings.issuer,
            subject=str(claims["sub"]),
            name=name_of(claims),
            grants=grants_of(claims, self.settings),
            state=digest_of(transaction.state.encode()),
            next_path=transaction.next_path,
        )

    def _now_s(self) -> int:
        return self.clock.wall_us() // 1_000_000

    def _secret(self) -> str:
        """43 characters of 256 bits, as PKCE wants them."""
        return base64.urlsafe_b64encode(self.random_bytes(32)).rstrip(b"=").decode("ascii")


def make_flow(
    settings: OidcSettings,
    *,
    client_secret: str,
    redirect_uri: str,
    clock: Clock,
    random_bytes: RandomBytes,
) -> OidcFlow:
    """Put a flow together; loads the libraries of the extra `oidc`.

    Args:
        settings: The operator's.
        client_secret: Empty for a public client.
        redirect_uri: Where the provider sends browsers back.
        clock: Time.
        random_bytes: A cryptographic source.
    """
    from gateway.oidc.provider import HttpProvider  # httpx and Authlib, which are an extra

    provider = HttpProvider(
        settings,
        client_secret=client_secret,
        redirect_uri=redirect_uri,
        monotonic_s=clock.monotonic_s,
    )
    return OidcFlow(settings=settings, provider=provider, clock=clock, random_bytes=random_bytes)


def _transaction(kept: bytes | None) -> _Transaction | None:
    if kept is None:
        return None
    return msgspec.msgpack.decode(kept, type=_Transaction)  # sealed by us, so it is one


def _denied(error: str) -> OidcFault:
    if error in _DENIALS:
        return OidcFault(
            "denied",
            "the identity provider did not let you in",
            mend="Log in there, and agree to what it asks.",
        )
    return OidcFault(
        "provider_error",
        "the identity provider refused this login",
        mend="Begin again; when it stays so, the operator's settings do not fit the provider's.",
        status=502,
    )
