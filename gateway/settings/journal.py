"""Section `finance.journal`: where a month's spend is posted in the general ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, StringConstraints

from gateway.settings.scalars import ProviderName, Section

CostCentre = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/:-]{0,63}$")]
"""A cost centre as the general ledger calls it."""
Account = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,31}$")]
"""Number of an account in the general ledger, as text: leading zeros count."""


class JournalAccountSettings(Section):
    """Accounts that the journal posts to."""

    expense: Account
    """Debited per cost centre with what models cost."""
    tax: Account | None = None
    """Debited with adjustments of kind `tax`; unset: `expense`."""
    clearing: Account
    """Credited for providers without an account of their own below."""
    providers: Mapping[ProviderName, Account] = Field(default_factory=dict[str, str])
    """Credited instead, by name of the provider."""
    rounding: Account
    """Takes what rounding to the currency's smallest unit leaves over."""


class JournalSettings(Section):
    """A month as a balanced journal, for import into the general ledger."""

    entity: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
    """Company code that posts it."""
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] | None = None
    """Of its lines; unset: `finance.currency`. Others than USD need `finance.rates_file`."""
    document_prefix: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,15}$")
    ] = "FW"
    """What document numbers begin with: `FW-2026-10`."""
    accounts: JournalAccountSettings
    """Accounts that it posts to."""
    unattributed_cost_centre: CostCentre | None = None
    """For spend of no team; unset: such spend stops the journal."""
