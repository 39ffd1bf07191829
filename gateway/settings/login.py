"""Section `login`: how people get to the dashboard, and what their provider says of them."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.settings.credentials import SecretReference, reference
from gateway.settings.scalars import (
    EnvName,
    FilePath,
    Many,
    Name,
    Section,
    StoreReference,
    check_http_url,
    split_url,
)

GROUPS_MAX = 500
_ORGANISATION_ROLES = (
    "platform_admin", "policy_approver", "finance_viewer", "finance_admin", "auditor",
)  # fmt: skip
RoleName = Literal[
    "platform_admin",
    "policy_approver",
    "finance_viewer",
    "finance_admin",
    "team_owner",
    "team_member",
    "auditor",
]


def is_loopback(host: str) -> bool:
    """Whether a host name can only be this machine."""
    bare = host.strip("[]").rstrip(".").lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def _check_issuer(value: str) -> str:
    check_http_url(value, credentials="client_secret_env or client_secret_file")
    parts = split_url(value)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("must begin with https://; plain http is for an issuer on loopback only")
    return value  # as it is written: tokens name it to the letter, a last slash included


def _check_public_url(value: str) -> str:
    url = check_http_url(value, credentials="nothing of the kind")
    parts = split_url(url)
    if parts.path:
        raise ValueError("must have no path: the dashboard is at /ui")
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("must begin with https://; plain http is for loopback only")
    return url


def _check_network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as error:
        raise ValueError("must be an address or a network such as 10.0.0.0/8") from error


def _check_domain(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", value):
        raise ValueError("must be a domain in lower case, such as example.com, without an @")
    return value


Issuer = Annotated[str, AfterValidator(_check_issuer)]
PublicUrl = Annotated[str, AfterValidator(_check_public_url)]
Network = Annotated[str, AfterValidator(_check_network)]
Domain = Annotated[str, AfterValidator(_check_domain)]
Host = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
ClaimName = Annotated[str, Field(min_length=1, max_length=256)]
Scope = Annotated[str, Field(pattern=r"^[!#-\[\]-~]{1,128}$")]


class GroupSettings(Section):
    """What the people of a group may do."""

    group: Annotated[str, Field(min_length=1, max_length=256)]
    """The group as the identity provider's claim names it."""
    role: RoleName
    """The role that its people have."""
    team: Name | None = None
    """The team of a role `team_owner` or `team_member`."""

    @model_validator(mode="after")
    def _team_fits(self) -> Self:
        if self.role in _ORGANISATION_ROLES and self.team is not None:
            raise ValueError(f"{self.role} is the organisation's role and takes no team")
        if self.role not in _ORGANISATION_ROLES and self.team is None:
            raise ValueError(f"{self.role} needs a team")
        return self


class OidcSettings(Section):
    """An OpenID Connect provider.

    The redirect URI to register there is `<public_url>/ui/login/oidc/callback`.
    """

    issuer: Issuer
    """The provider's issuer, exactly as its tokens name it."""
    client_id: Annotated[str, Field(min_length=1, max_length=256)]
    """What the provider calls this gateway."""
    client_secret_env: EnvName | None = None
    """Environment variable with the client secret; a public client has none."""
    client_secret_file: FilePath | None = None
    """File with the client secret."""
    client_secret_ref: StoreReference | None = None
    """Secret store reference of the client secret."""
    hosts: Annotated[Many[Host], Field(max_length=16)] = ()
    """Further hosts that the provider's discovery may name; otherwise only the issuer's own."""
    label: Annotated[str, Field(min_length=1, max_length=64)] = "your organisation"
    """What the button to log in says: Log in with ..."""
    scopes: Annotated[Many[Scope], Field(min_length=1, max_length=16)] = (
        "openid",
        "profile",
        "email",
    )
    """What is asked for; `openid` is always among it."""
    groups_claim: ClaimName = "groups"
    """Claim of the ID token that lists a person's groups."""
    groups: Annotated[Many[GroupSettings], Field(max_length=GROUPS_MAX)] = ()
    """Roles by group; who is in none of these groups is not let in."""
    email_domains: Annotated[Many[Domain], Field(max_length=GROUPS_MAX)] = ()
    """Domains of the e-mail addresses that are let in; empty: all, also people without one."""
    require_verified_email: bool = True
    """Whether the provider must vouch for the address, where `email_domains` are given."""
    clock_skew_s: int = Field(default=60, ge=0, le=300)
    """How far the provider's clock may be from this one."""

    @property
    def client_secret(self) -> SecretReference | None:
        """Where the client secret is kept, None for a public client."""
        return reference(
            self.client_secret_env,
            self.client_secret_file,
            self.client_secret_ref,
            name="client_secret",
        )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _ = self.client_secret
        if "openid" not in self.scopes:
            raise ValueError("scopes must include openid")
        return self


class LoginSettings(Section):
    """How people get to the dashboard."""

    public_url: PublicUrl | None = None
    """Where browsers find the gateway, such as `https://fareway.example.com`; needed for `oidc`."""
    trusted_proxies: Annotated[Many[Network], Field(max_length=64)] = ("127.0.0.0/8", "::1/128")
    """Addresses of proxies whose `X-Forwarded-Proto` and `X-Forwarded-For` are believed."""
    passwords: Literal["auto", "always", "never"] = "auto"
    """When people may log in with a password; `auto`: until a platform admin has logged in through
    `oidc`."""
    api_keys: bool = True
    """Whether the administrator's key and teams' keys open the dashboard."""
    session_s: int = Field(default=28_800, ge=300, le=86_400)
    """How long a session lasts at most."""
    idle_s: int = Field(default=1_800, ge=60, le=86_400)
    """How long a session lasts that nobody uses."""
    oidc: OidcSettings | None = None
    """The identity provider; needs the extra `oidc`."""

    @model_validator(mode="after")
    def _oidc_has_an_address(self) -> Self:
        if self.oidc is not None and self.public_url is None:
            raise ValueError("oidc needs public_url: the provider sends people back there")
        return self
