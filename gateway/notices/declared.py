"""What the configuration says about notices, with the secrets that sending them needs."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.ledger.views import CostCentre
from gateway.notices.messages import AnomalyWatch, MailServer, NoticeDeclarations, Schedule
from gateway.settings.cost_centres import cost_centres
from gateway.settings.declared_budgets import declared_webhooks
from gateway.settings.errors import ConfigError, SecretError
from gateway.settings.loader import LoadedConfig
from gateway.settings.secrets import resolve
from gateway.settings.statements import MailSettings
from pricing.money import PICO_PER_USD

_PORTS = {"starttls": 587, "tls": 465, "none": 25}


def declared_notices(config: LoadedConfig, *, environ: Mapping[str, str]) -> NoticeDeclarations:
    """Schedules, recipients and the mail server.

    Raises:
        ConfigError: A secret cannot be read; with its line.
    """
    finance = config.settings.finance
    watch = finance.anomalies
    return NoticeDeclarations(
        organisation=finance.organisation,
        cost_centres=tuple(CostCentre(*one) for one in cost_centres(config.settings)),
        cost_tags=finance.cost_tags,
        schedules=tuple(
            Schedule(
                name=one.name,
                teams=one.teams,
                every=one.every,
                after=one.after,
                mail=one.mail,
                webhooks=one.webhooks,
            )
            for one in finance.statements
        ),
        anomalies=None
        if watch is None
        else AnomalyWatch(
            excess_pico_usd=watch.excess_usd * PICO_PER_USD,
            mail=watch.mail,
            webhooks=watch.webhooks,
        ),
        mail=None if finance.mail is None else _mail(finance.mail, config, environ),
        webhooks=declared_webhooks(config, environ),
    )


def _mail(mail: MailSettings, config: LoadedConfig, environ: Mapping[str, str]) -> MailServer:
    password = ""
    if mail.password is not None:
        try:
            password = resolve(mail.password, environ=environ, config=config)
        except SecretError as error:
            place = config.locate("finance", "mail")
            raise ConfigError((place.problem(str(error)),)) from error
    return MailServer(
        host=mail.host,
        port=mail.port or _PORTS[mail.security],
        security=mail.security,
        sender=mail.sender,
        user=mail.user or "",
        password=password,
        ca_file="" if mail.ca_file is None else str(config.resolve(mail.ca_file)),
    )
