"""Sections `finance.statements` and `finance.mail`: who is sent what each team is charged."""

from __future__ import annotations

import ipaddress
import re
from email.errors import HeaderParseError
from email.headerregistry import Address
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from gateway.settings.credentials import SecretReference, reference
from gateway.settings.scalars import EnvName, FilePath, Many, Name, Section, StoreReference

RECIPIENTS_MAX = 32
_ADDRESS_CHARACTERS_MAX = 254
_ADDRESS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9.-]{1,189}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?", re.ASCII)


def _check_address(value: str) -> str:
    problem = "must be an e-mail address such as finance@example.com, without a name"
    if not _ADDRESS.fullmatch(value) or len(value) > _ADDRESS_CHARACTERS_MAX:
        raise ValueError(problem)
    try:
        Address(addr_spec=value)
    except (ValueError, HeaderParseError) as error:
        raise ValueError(problem) from error
    return value


def _check_host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError("must be a host name or an address, without a scheme and a port")
    return value


MailAddress = Annotated[str, AfterValidator(_check_address)]
"""One address, ASCII, without a name."""


class MailSettings(Section):
    """The server that takes e-mail (SMTP submission)."""

    host: Annotated[str, AfterValidator(_check_host)]
    """Its name; the certificate has to be for it."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    """Unset: 587 for `starttls`, 465 for `tls`, 25 for `none`."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """`starttls` asks for TLS and sends nothing without, `tls` begins with it, `none` is for a
    server on this machine."""
    sender: MailAddress
    """Address that messages come from."""
    user: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    """User name at the server; unset: no login."""
    password_env: EnvName | None = None
    """Environment variable with the password."""
    password_file: FilePath | None = None
    """File with the password."""
    password_ref: StoreReference | None = None
    """Secret store reference of the password."""
    ca_file: FilePath | None = None
    """Certificates (PEM) that the server's is checked with; unset: those of this machine."""

    @property
    def password(self) -> SecretReference | None:
        """Where the password is kept, None without a login."""
        return reference(self.password_env, self.password_file, self.password_ref, name="password")

    @model_validator(mode="after")
    def _login_is_whole_and_hidden(self) -> Self:
        if (self.user is None) != (self.password is None):
            raise ValueError("needs user and password_env (or _file, _ref), or neither")
        if self.security == "none" and not _is_this_machine(self.host):
            raise ValueError("security: none is for a server on this machine; take starttls or tls")
        return self


class StatementSettings(Section):
    """Statements that are sent by themselves, once for each period and team."""

    name: Name
    """What the schedule is called; unique. Under a new name it is another schedule."""
    teams: Many[Name] = ()
    """Teams with a statement each; none: every team that is charged anything."""
    every: Literal["month", "week"] = "month"
    """`month`: calendar months in UTC; `week`: from Monday, without adjustments."""
    after: Literal["close", "end"] = "close"
    """Of months: on the day (UTC) after the month was closed for good, or after its end."""
    mail: Many[MailAddress] = Field(default=(), max_length=RECIPIENTS_MAX)
    """Addresses, each sent a message of its own; needs `finance.mail`."""
    webhooks: Many[Name] = Field(default=(), max_length=RECIPIENTS_MAX)
    """Names of `alerts.webhooks`."""

    @model_validator(mode="after")
    def _has_recipients(self) -> Self:
        if not self.mail and not self.webhooks:
            raise ValueError("has no recipient: give mail or webhooks")
        return self


class AnomalySettings(Section):
    """Days that cost much more than such days do, and who hears of them."""

    excess_usd: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Least excess over what was expected, in whole US dollars."""
    mail: Many[MailAddress] = Field(default=(), max_length=RECIPIENTS_MAX)
    """Addresses that are told of each, once; needs `finance.mail`."""
    webhooks: Many[Name] = Field(default=(), max_length=RECIPIENTS_MAX)
    """Names of `alerts.webhooks` that are told of each, once."""


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
