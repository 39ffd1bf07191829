"""Budgets that the file declares, as the ledger takes them, and where their alerts go."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.budgets.messages import AlertWebhook, BudgetDeclarations
from gateway.settings.budget_scopes import budgets_of
from gateway.settings.declared_keys import fixed_key_records
from gateway.settings.errors import ConfigError, Problem, SecretError
from gateway.settings.loader import LoadedConfig
from gateway.settings.secrets import resolve


def declared_budgets(config: LoadedConfig, *, environ: Mapping[str, str]) -> BudgetDeclarations:
    """Every budget of the file, and where alerts about budgets go.

    Raises:
        ConfigError: A fixed key or a webhook's secret cannot be read; each with its line.
    """
    # Ids of fixed keys do not depend on the pepper.
    records = fixed_key_records(config, environ=environ, pepper=bytes(32))
    key_ids = {(record.team, record.name): record.key_id for record in records}
    return BudgetDeclarations(
        budgets=tuple(budget for _, budget in budgets_of(config.settings, key_ids)),
        webhooks=declared_webhooks(config, environ),
    )


def declared_webhooks(config: LoadedConfig, environ: Mapping[str, str]) -> tuple[AlertWebhook, ...]:
    """Every webhook with its secret.

    Raises:
        ConfigError: A secret cannot be read; each with its line.
    """
    webhooks: list[AlertWebhook] = []
    problems: list[Problem] = []
    for index, webhook in enumerate(config.settings.alerts.webhooks):
        try:
            secret = resolve(webhook.secret, environ=environ, config=config)
        except SecretError as error:
            place = config.locate("alerts", "webhooks", index)
            problems.append(place.problem(str(error)))
        else:
            webhooks.append(
                AlertWebhook(name=webhook.name, url=webhook.url, secret=secret.encode())
            )
    if problems:
        raise ConfigError(tuple(problems))
    return tuple(webhooks)
