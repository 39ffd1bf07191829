"""Section `alerts`: who is told when a budget crosses a threshold."""

from __future__ import annotations

from typing import Annotated, Self

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
)

_WEBHOOKS_MAX = 16


def _check_url(value: str) -> str:
    return check_http_url(value, credentials="secret_env or secret_file")


class WebhookSettings(Section):
    """An address that alerts are posted to, signed."""

    name: Name
    """What it is called; unique. Under a new name it is another webhook."""
    url: Annotated[str, AfterValidator(_check_url)]
    """Where alerts are posted to, as JSON."""
    secret_env: EnvName | None = None
    """Environment variable with the secret that signs them."""
    secret_file: FilePath | None = None
    """File with the secret that signs them."""
    secret_ref: StoreReference | None = None
    """Secret store reference of the secret that signs them."""

    @property
    def secret(self) -> SecretReference:
        """Where the secret is kept."""
        given = reference(self.secret_env, self.secret_file, self.secret_ref, name="secret")
        if given is None:
            raise ValueError("needs secret_env, secret_file or secret_ref, to sign what it posts")
        return given

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        _ = self.secret
        return self


class AlertSettings(Section):
    """Alerts about budgets."""

    webhooks: Many[WebhookSettings] = Field(default=(), max_length=_WEBHOOKS_MAX)
    """Where alerts go; without any they stand in the log only."""

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        names = [webhook.name for webhook in self.webhooks]
        if len(set(names)) < len(names):
            raise ValueError("two webhooks have the same name")
        return self
