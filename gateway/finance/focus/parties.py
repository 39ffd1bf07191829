"""Who stands on an export, from the settings."""

from __future__ import annotations

from gateway.finance.focus.order import Parties
from gateway.settings.document import Settings
from gateway.settings.providers import LocalProvider


def parties_of(settings: Settings) -> Parties:
    """The operator, its own machines, and the cost tags that it declares."""
    machines = [
        name
        for name, provider in settings.providers.items()
        if isinstance(provider, LocalProvider) or any(price.is_by_hour for price in provider.price)
    ]
    return Parties(
        organisation=settings.finance.organisation,
        machines=tuple(machines),
        declared_tags=settings.finance.cost_tags,
    )
