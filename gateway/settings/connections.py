"""How a provider is reached: trust roots, our certificate, a forward proxy, how many connections.

Nothing of this is ever read from the environment; of a proxy's credentials the file holds only
where they are kept.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.settings.credentials import SecretReference, reference
from gateway.settings.scalars import (
    EnvName,
    FilePath,
    Seconds,
    Section,
    StoreReference,
    split_url,
)


def _check_proxy_url(value: str) -> str:
    parts = split_url(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user name or password; use proxy_credentials_env")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("must be scheme, host and port alone, such as http://proxy.internal:3128")
    if not value.isascii() or any(character.isspace() for character in value):
        raise ValueError("must be ASCII; write an international host in its xn-- form")
    return value.rstrip("/")


ProxyUrl = Annotated[str, AfterValidator(_check_proxy_url)]


class TlsSettings(Section):
    """Whom a provider's connections trust, and who they say we are."""

    ca_file: FilePath | None = None
    """Certificates (PEM) to trust instead of the platform's."""
    client_cert_file: FilePath | None = None
    """Our certificate (PEM), for an upstream that asks for one."""
    client_key_file: FilePath | None = None
    """Its unencrypted key (PEM); unset: it is in the same file."""

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.client_key_file is not None and self.client_cert_file is None:
            raise ValueError("client_key_file needs client_cert_file")
        return self


class ConnectionLimits(Section):
    """How many connections a worker keeps to a provider, and for how long."""

    max: int = Field(default=1000, ge=1, le=65_536)
    """Connections that a worker has open at once."""
    waiting_max: int = Field(default=1000, ge=0, le=65_536)
    """Requests of a worker that may wait for one of them; one more tries elsewhere at once."""
    keep_alive_s: Seconds | None = None
    """How long an idle connection is kept; unset: 4 s over plain http, since most servers of one's
    own close after 5 s, and 30 s over https. Less where the upstream announces less."""


class ConnectionSource(Section):
    """The settings of a provider that say how it is reached."""

    tls: TlsSettings = TlsSettings()
    """Trust roots and client certificate."""
    proxy_url: ProxyUrl | None = None
    """Forward proxy; https goes through it in a tunnel. The environment's proxies are ignored."""
    proxy_credentials_env: EnvName | None = None
    """Environment variable with the proxy's `user:password`."""
    proxy_credentials_file: FilePath | None = None
    """File with the proxy's `user:password`."""
    proxy_credentials_ref: StoreReference | None = None
    """Secret store reference of the proxy's `user:password`."""
    connections: ConnectionLimits = ConnectionLimits()
    """How many connections, and for how long."""

    @property
    def proxy_credentials(self) -> SecretReference | None:
        """Where the proxy's credentials are kept, None when it needs none."""
        return reference(
            self.proxy_credentials_env,
            self.proxy_credentials_file,
            self.proxy_credentials_ref,
            name="proxy_credentials",
        )

    @model_validator(mode="after")
    def _credentials_have_a_proxy(self) -> Self:
        if self.proxy_credentials is not None and self.proxy_url is None:
            raise ValueError("proxy_credentials need a proxy_url")
        return self
