"""Section `finance`: how spend is reported, and when its periods begin."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, StringConstraints

from gateway.settings.baseline import BaselineSettings
from gateway.settings.journal import JournalSettings
from gateway.settings.machines import MachineSettings
from gateway.settings.scalars import FilePath, Many, Name, Percent, Section, Usd
from gateway.settings.statements import AnomalySettings, MailSettings, StatementSettings

COST_TAGS_MAX = 8


def _check_time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("must be the IANA name of a time zone, such as Europe/Berlin") from error
    return value


def _check_cost_tags(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(value)) < len(value):
        raise ValueError("names a cost tag twice")
    if len(value) > COST_TAGS_MAX:
        raise ValueError(f"names more than {COST_TAGS_MAX} cost tags")
    return value


TimeZone = Annotated[str, AfterValidator(_check_time_zone)]
"""IANA name of a time zone."""
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
"""Three letters of ISO 4217."""
TagName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_.:-]{1,64}$")]


class ReconciliationSettings(Section):
    """When a vendor's bill and the ledger count as the same, and how their models are called."""

    quantity_tolerance_percent: Percent = 0.5
    """Counts that differ by less are the same."""
    amount_tolerance_percent: Percent = 0.5
    """Amounts that differ by less of what is billed are the same."""
    amount_tolerance_usd: Usd = Decimal("0.01")
    """Amounts that differ by less are the same, whatever the share."""
    price_drift_percent: Percent = 0.1
    """A price that a bill implies and that is further from ours is proposed."""
    delay_days: int = Field(default=2, ge=0, le=31)
    """Days back for which vendors' figures are not final yet."""
    model_aliases: Mapping[Name, Name] = Field(default_factory=dict[str, str])
    """Names of models on bills (`account/name`), each with the model's id at the provider."""


class CloseSettings(Section):
    """From when on a month may be closed."""

    soft_after_days: int = Field(default=2, ge=0, le=62)
    """Days after its end from which it may be closed softly; late events still land in it."""
    hard_after_days: int = Field(default=5, ge=0, le=62)
    """Days after its end from which it may be closed for good."""
    two_person: bool = False
    """Whether closing for good takes two: one proposes it with a digest, another confirms that."""


class FinanceSettings(Section):
    """Reporting of spend; amounts in the ledger are always picodollars."""

    organisation: Annotated[str, StringConstraints(min_length=1, max_length=120)] = "Fareway"
    """Who bills the teams, as it stands on statements and exports."""
    time_zone: TimeZone = "UTC"
    """Zone of days and months in reports and budgets that do not name one."""
    fiscal_year_start_month: int = Field(default=1, ge=1, le=12)
    """Month in which the fiscal year begins."""
    currency: Currency = "USD"
    """Currency of reports that do not name one; others than USD need rates."""
    rates_file: FilePath | None = None
    """CSV file of exchange rates with the columns day, base, quote, rate and source."""
    cost_tags: Annotated[Many[TagName], AfterValidator(_check_cost_tags)] = ()
    """Cost tags that have sums of their own; the others are kept with each attempt only."""
    baseline: BaselineSettings = Field(default_factory=BaselineSettings)
    """What savings are measured against."""
    reconciliation: ReconciliationSettings = Field(default_factory=ReconciliationSettings)
    """When a vendor's bill and the ledger count as the same."""
    close: CloseSettings = Field(default_factory=CloseSettings)
    """From when on a month may be closed."""
    journal: JournalSettings | None = None
    """A month as a balanced journal; unset: none is made."""
    machines: MachineSettings = Field(default_factory=MachineSettings)
    """How the cost of machines of one's own is shared, and at which rate reports show it."""
    statements: Many[StatementSettings] = Field(default=(), max_length=64)
    """Statements that are sent by themselves."""
    mail: MailSettings | None = None
    """The server that takes e-mail; unset: none is sent."""
    anomalies: AnomalySettings | None = None
    """Who hears of days that cost much more than such days do; unset: nobody."""
