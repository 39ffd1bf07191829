"""What is asked and answered about vendors' files and how they compare with the ledger."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.finance.messages import DayOrNone, Month, Text


class SourceKind(StrEnum):
    """Formats that can be imported."""

    OPENAI_COSTS = "openai-costs"
    OPENAI_USAGE = "openai-usage"
    ANTHROPIC_COSTS = "anthropic-costs"
    ANTHROPIC_USAGE = "anthropic-usage"
    OPENROUTER_ACTIVITY = "openrouter-activity"
    OPENROUTER_GENERATIONS = "openrouter-generations"
    AWS_FOCUS = "aws-focus"
    AZURE_FOCUS = "azure-focus"
    FOCUS = "focus"
    CSV = "csv"


class Overlap(StrEnum):
    """What to do with days that another file of the account and source covers already."""

    REFUSE = "refuse"
    REPLACE = "replace"
    ADD = "add"


class ImportFile(msgspec.Struct, frozen=True, kw_only=True, tag="import_file"):
    """Take a vendor's file.

    Attributes:
        actor: Who imports.
        source: Its format.
        account: Provider of the configuration that it is about.
        file_name: For errors and lists.
        content: The file.
        mapping: Text of the mapping file, for `csv` only.
        mapping_name: Its name, for errors.
        issued_on: Day of the invoice when the file does not say; empty for a report.
        number: Number of the invoice when the file does not say.
        overlap: What to do with days that are covered already.
        rates: Text of the rates file, None without one.
        rates_name: Its name, for errors.
    """

    actor: str
    source: SourceKind
    account: Annotated[str, Meta(min_length=1, max_length=128)]
    file_name: Annotated[str, Meta(min_length=1, max_length=255)]
    content: bytes
    mapping: str | None = None
    mapping_name: str = "mapping"
    issued_on: DayOrNone = ""
    number: Text = ""
    overlap: Overlap = Overlap.REFUSE
    rates: str | None = None
    rates_name: str = "finance.rates_file"


class ImportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """An import.

    Attributes:
        batch_id: Its number.
        at_us: When, microseconds since the epoch.
        actor: Who.
        source: Its format.
        account: Provider of the configuration.
        file_name: As it was given.
        sha256: Of the content, hexadecimal.
        state: `ok` or `unreadable`.
        reason: Why it could not be read, empty when it could.
        first_day: First day that it covers.
        last_day: Last one, counted.
        row_count: Rows kept.
        replaced_by: The import that took its place, None while it counts.
    """

    batch_id: int
    at_us: int
    actor: str
    source: str
    account: str
    file_name: str
    sha256: str
    state: str
    reason: str
    first_day: str
    last_day: str
    row_count: int
    replaced_by: int | None


class ImportReply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a file.

    Attributes:
        batch: The import.
        is_new: False when the same file was imported before: nothing was changed.
        left_out: Rows that are of other services, or repeat others.
        total_pico_usd: Sum of its money, 0 for usage.
        sentence: All of it for a person.
    """

    batch: ImportedFile
    is_new: bool
    left_out: int
    total_pico_usd: int
    sentence: str


class ListImports(msgspec.Struct, frozen=True, kw_only=True, tag="list_imports"):
    """Imports, newest first."""


class Tolerances(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts as the same; ratios as decimal text, so that no float decides.

    Attributes:
        quantity_ratio: Of the larger count.
        amount_ratio: Of what is billed.
        amount_pico_usd: Below it nothing is a difference, whatever the ratio.
        price_ratio: Of our price; a bill that implies another one by more proposes it.
        delay_days: Days before a run whose figures are not final yet.
    """

    quantity_ratio: str = "0.005"
    amount_ratio: str = "0.005"
    price_ratio: str = "0.001"
    amount_pico_usd: int = 10_000_000_000
    delay_days: int = 2


class Reconcile(msgspec.Struct, frozen=True, kw_only=True, tag="reconcile"):
    """Compare a month of the ledger with what vendors bill.

    Attributes:
        actor: Who runs it.
        month: Which month.
        tolerances: What counts as the same.
        aliases: Names of models on bills, and what the ledger calls them, per account:
            `account/name` to a model at the provider.
        proposes: Whether to make proposals of what was found.
    """

    actor: str
    month: Month
    tolerances: Tolerances = Tolerances()
    aliases: dict[str, str] = {}
    proposes: bool = True


class AccountCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what a vendor bills was metered.

    Attributes:
        account: Provider of the configuration.
        state: `read`, `no source` or `unreadable`; the numbers are of what could be read.
        metered_units: Tokens that we counted on the compared days, those of differences included.
        billed_units: Tokens that the vendor counted there; None when it counted none for us.
        ledger_pico_usd: Booked on the compared days.
        adjusted_pico_usd: Posted adjustments of those days.
        billed_pico_usd: Billed for them.
        outside_pico_usd: Booked on days of the month that no bill covers.
        compared_days: First and last day that are compared and final, empty when none is.
        reason: Why it could not be read.
    """

    account: str
    state: str
    metered_units: int
    billed_units: int | None
    ledger_pico_usd: int
    adjusted_pico_usd: int
    billed_pico_usd: int
    outside_pico_usd: int
    compared_days: tuple[str, ...] = ()
    reason: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One part of what a bill and the ledger differ by.

    Attributes:
        account: Provider of the configuration.
        day: Day of charge.
        model: Empty where the bill is coarser.
        meter: Empty where the bill is coarser.
        tier: As billed.
        kind: A `DifferenceKind` value.
        metered_units: What we counted in the cell, None where nothing can be counted.
        billed_units: What the vendor counted, None when it did not say.
        ledger_pico_usd: Booked in the cell, adjustments included.
        billed_pico_usd: Billed in the cell.
        amount_pico_usd: This part; all parts of a run sum to billed less booked less adjusted.
        sentence: Why, with both figures.
        proposal_id: Where it is to be corrected, None when it is not.
    """

    account: str
    day: str
    model: str
    meter: str
    tier: str
    kind: str
    metered_units: int | None
    billed_units: int | None
    ledger_pico_usd: int
    billed_pico_usd: int
    amount_pico_usd: int
    sentence: str
    proposal_id: int | None = None


class ReconciliationRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found.

    Attributes:
        run_id: Its number.
        at_us: When, microseconds since the epoch.
        actor: Who ran it.
        month: The month.
        state: `read` when every account with spend was read in full, else `partial`.
        ledger_pico_usd: Booked where a bill could be compared.
        adjusted_pico_usd: Posted adjustments there.
        billed_pico_usd: Billed there.
        accounts: Coverage of each account.
        tolerances: What counted as the same.
        differences: All parts, by account, day, model and meter; empty in lists of runs.
        proposal_ids: Proposals that it made.
        price_proposal_ids: Proposals of other prices that it made.
    """

    run_id: int
    at_us: int
    actor: str
    month: str
    state: str
    ledger_pico_usd: int
    adjusted_pico_usd: int
    billed_pico_usd: int
    accounts: tuple[AccountCoverage, ...]
    tolerances: Tolerances
    differences: tuple[Difference, ...] = ()
    proposal_ids: tuple[int, ...] = ()
    price_proposal_ids: tuple[int, ...] = ()


class ListRuns(msgspec.Struct, frozen=True, kw_only=True, tag="list_runs"):
    """Runs, newest first; of one month when it is given."""

    month: Month | None = None


class ShowRun(msgspec.Struct, frozen=True, kw_only=True, tag="show_run"):
    """One run with its differences."""

    run_id: int
