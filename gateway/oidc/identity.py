"""From the claims of a checked ID token to a person with roles; pure.

Source: OpenID Connect Core 1.0, sections 2, 3.1.3.7 and 5.1.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from gateway.access.roles import Grant, Role, grants_fault
from gateway.oidc.faults import OidcFault, not_trusted
from gateway.settings.login import OidcSettings

GROUPS_MAX = 2000
SUBJECT_CHARACTERS_MAX = 255
_ASK_ADMIN = "Ask whoever runs this gateway, or the identity provider, to let you in."

Claims = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom the provider vouches for.

    Attributes:
        issuer: The provider.
        subject: The person's id there.
        name: For people.
        grants: Roles of their groups.
        state: SHA-256 of the login's state.
        next_path: The page that they asked for.
    """

    issuer: str
    subject: str
    name: str
    grants: tuple[Grant, ...]
    state: bytes
    next_path: str


def check_claims(claims: Claims, settings: OidcSettings, *, nonce: str, now_s: float) -> None:
    """See that a token is of this provider, for us, for this login, and in time.

    Raises:
        OidcFault: It is not.
    """
    skew_s = settings.clock_skew_s
    if claims.get("iss") != settings.issuer:
        raise not_trusted("wrong_issuer")
    _check_audience(claims, settings.client_id)
    given = claims.get("nonce")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
        raise not_trusted("wrong_nonce")
    expires, issued = _instant(claims, "exp"), _instant(claims, "iat")
    if expires is None or issued is None:
        raise not_trusted("no_times")
    if expires + skew_s <= now_s:
        raise not_trusted("expired")
    not_before = _instant(claims, "nbf") if "nbf" in claims else issued
    if not_before is None or max(issued, not_before) - skew_s > now_s:
        raise not_trusted("not_yet_valid")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARACTERS_MAX:
        raise not_trusted("no_subject")


def _check_audience(claims: Claims, client_id: str) -> None:
    audience = claims.get("aud")
    listed = [audience] if isinstance(audience, str) else audience
    if not isinstance(listed, list) or client_id not in listed:
        raise not_trusted("wrong_audience")
    others = len(cast("list[object]", listed)) > 1
    if (others or "azp" in claims) and claims.get("azp") != client_id:
        raise not_trusted("wrong_audience")


def _instant(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def check_email(claims: Claims, settings: OidcSettings) -> None:
    """See that somebody's address is of a domain that is let in.

    Raises:
        OidcFault: It is not, or the provider does not vouch for it.
    """
    if not settings.email_domains:
        return
    email = claims.get("email")
    domain = email.rpartition("@")[2].lower() if isinstance(email, str) and "@" in email else ""
    if domain not in settings.email_domains:
        raise OidcFault(
            "wrong_email_domain",
            "your e-mail address is of no domain that is let in here",
            mend=_ASK_ADMIN,
        )
    if settings.require_verified_email and claims.get("email_verified") is not True:
        raise OidcFault(
            "unverified_email",
            "the identity provider does not vouch for your e-mail address",
            mend="Confirm the address there, then log in again.",
        )


def grants_of(claims: Claims, settings: OidcSettings) -> tuple[Grant, ...]:
    """Roles of a person's groups.

    Raises:
        OidcFault: There are none, or they do not go together.
    """
    groups = _groups(claims, settings.groups_claim)
    found = {
        Grant(role=Role(one.role), team=one.team or "")
        for one in settings.groups
        if one.group in groups
    }
    if not found:
        if "_claim_names" in claims:
            raise OidcFault(
                "groups_left_out",
                "you are in more groups than the identity provider puts into a token",
                mend="Have it send only the groups that are assigned to this application.",
            )
        raise OidcFault("no_role", "none of your groups has a role here", mend=_ASK_ADMIN)
    grants = tuple(sorted(found))
    if fault := grants_fault(grants):
        raise OidcFault(
            "roles_conflict", f"your groups do not go together: {fault}", mend=_ASK_ADMIN
        )
    return grants


def _groups(claims: Claims, name: str) -> frozenset[str]:
    """Names of groups; `realm_access.roles` is looked up inside where no claim has that name."""
    value = claims.get(name)
    if value is None:
        value = _inside(claims, name)
    if isinstance(value, str):
        return frozenset({value})
    if not isinstance(value, list):
        return frozenset()
    listed = cast("Sequence[object]", value)[:GROUPS_MAX]
    return frozenset(one for one in listed if isinstance(one, str))


def _inside(claims: Claims, path: str) -> object:
    *steps, last = path.split(".")
    inner = dict(claims)
    for step in steps:
        found = inner.get(step)
        if not isinstance(found, dict):
            return None
        inner = cast("dict[str, object]", found)
    return inner.get(last)


def name_of(claims: Claims) -> str:
    """What to call a person."""
    for claim in ("name", "preferred_username", "email"):
        value = claims.get(claim)
        if isinstance(value, str) and value.strip():
            return value.strip()[:128]
    return cast("str", claims["sub"])[:64]
