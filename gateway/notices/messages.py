"""What the ledger process is told about notices; no database behind it, for the supervisor."""

from __future__ import annotations

import msgspec

from gateway.budgets.messages import AlertWebhook
from gateway.ledger.views import CostCentre


class MailServer(msgspec.Struct, frozen=True, kw_only=True):
    """Where e-mail goes.

    Attributes:
        host: Name that its certificate is for.
        port: Of the server.
        security: `starttls`, `tls` or `none`.
        sender: Address.
        user: Empty for no login.
        password: Empty for no login.
        ca_file: Certificates to check with, empty for those of the machine.
    """

    host: str
    port: int
    security: str
    sender: str
    user: str = ""
    password: str = ""
    ca_file: str = ""

    def __repr__(self) -> str:
        """Without the password."""
        return f"MailServer({self.host}:{self.port}, {self.security}, {self.sender})"


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Statements that are sent by themselves.

    Attributes:
        name: Unique.
        teams: Empty for every team that is charged anything.
        every: `month` or `week`.
        after: Of months `close` or `end`.
        mail: Addresses.
        webhooks: Names.
    """

    name: str
    teams: tuple[str, ...]
    every: str
    after: str
    mail: tuple[str, ...]
    webhooks: tuple[str, ...]

    @property
    def recipients(self) -> tuple[str, ...]:
        """Each with what it is before a colon."""
        mail = (f"{MAIL}{address}" for address in self.mail)
        return (*mail, *(f"{WEBHOOK}{name}" for name in self.webhooks))


class AnomalyWatch(msgspec.Struct, frozen=True, kw_only=True):
    """Who hears of anomalies.

    Attributes:
        excess_pico_usd: Least excess over what was expected.
        mail: Addresses.
        webhooks: Names.
    """

    excess_pico_usd: int
    mail: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()

    @property
    def recipients(self) -> tuple[str, ...]:
        """Each with what it is before a colon."""
        mail = (f"{MAIL}{address}" for address in self.mail)
        return (*mail, *(f"{WEBHOOK}{name}" for name in self.webhooks))


class NoticeDeclarations(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says about notices, and about sums that the ledger keeps.

    Attributes:
        organisation: Who bills the teams.
        cost_centres: Who is charged to which.
        cost_tags: Those that have sums of their own.
        schedules: Statements that are sent by themselves.
        anomalies: None where nobody is told of them.
        mail: The server, None for no e-mail.
        webhooks: Those that are configured.
    """

    organisation: str = "Fareway"
    cost_centres: tuple[CostCentre, ...] = ()
    cost_tags: tuple[str, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    anomalies: AnomalyWatch | None = None
    mail: MailServer | None = None
    webhooks: tuple[AlertWebhook, ...] = ()


class SendStatement(msgspec.Struct, frozen=True, kw_only=True):
    """Send a statement to those who are sent it by schedule, now.

    Attributes:
        actor: Who asks.
        team: Whose.
        period: A month or a week.
        is_again: Whether to send it to those who were sent it before.
    """

    actor: str
    team: str
    period: str
    is_again: bool = False


class SentNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice and how far it got with a recipient.

    Attributes:
        notice_id: Its number.
        kind: `statement` or `anomaly`.
        subject: What it says.
        at_us: When it was made, microseconds since the epoch.
        recipient: `mail:address` or `webhook:name`.
        tries: How often it was tried.
        delivered_at_us: When it was taken, None before.
        next_try_at_us: When it is tried next, None for never.
        failure: Why the last try failed, empty for none.
    """

    notice_id: int
    kind: str
    subject: str
    at_us: int
    recipient: str
    tries: int
    delivered_at_us: int | None
    next_try_at_us: int | None
    failure: str


MAIL, WEBHOOK = "mail:", "webhook:"
"""What recipients begin with."""
