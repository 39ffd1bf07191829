"""What commands and pages ask of finance, and what it answers; no database behind it.

Every request is one struct of the tagged union `FinanceRequest`; it carries all that answering
needs, so that the ledger process keeps no configuration of its own. Months are `YYYY-MM`, days
`YYYY-MM-DD`, both in UTC; empty text means that a thing is not about one of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

PICO_USD_MAX = 9 * 10**18

Month = Annotated[str, Meta(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$")]
Amount = Annotated[int, Meta(ge=-PICO_USD_MAX, le=PICO_USD_MAX)]
Text = Annotated[str, Meta(max_length=512)]
UNATTRIBUTED = "unattributed"
"""The team of what no team of ours is known to have used."""


class AdjustmentKind(StrEnum):
    """What an adjustment is."""

    TRUE_UP = "true_up"
    """The vendor bills other usage or another price than was booked."""
    CREDIT = "credit"
    TAX = "tax"
    ROUNDING = "rounding"
    LATE = "late"
    """A true-up of a month that is closed, counted in a later one."""
    ALLOCATION = "allocation"
    """A cost moved between teams; sums to zero."""
    REATTRIBUTION = "reattribution"
    """Spend of nobody given to its team; sums to zero."""


class AdjustmentLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One amount of a proposal.

    Attributes:
        amount_pico_usd: Signed; not 0.
        team: Who pays; `unattributed` for nobody.
        project: Of the team, empty for none.
        account: Provider of the configuration that it is about.
        model: Model at the provider.
        meter: Meter, empty for the whole model.
        day: Original day of charge.
        event_id: 32 hexadecimal digits of the attempt that it settles.
        invoice_line_id: The line of an invoice that it follows from.
    """

    amount_pico_usd: Amount
    team: Text
    project: Text = ""
    account: Text = ""
    model: Text = ""
    meter: Text = ""
    day: Annotated[str, Meta(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")] = ""
    event_id: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?$")] = ""
    invoice_line_id: int | None = None


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """Adjustments that wait for approval, or were decided.

    Attributes:
        proposal_id: Its number.
        at_us: When it was made, microseconds since the epoch.
        proposed_by: Who made it.
        period: The month that it is about.
        kind: What all of its lines are.
        reason: One sentence for whoever approves.
        total_pico_usd: Sum of the lines.
        lines: At least one.
        run_id: The reconciliation run that it comes from, None when a person made it.
        state: `proposed`, `posted` or `rejected`.
        decided_at_us: When, None while it waits.
        decided_by: Who, empty while it waits.
    """

    proposal_id: int
    at_us: int
    proposed_by: str
    period: str
    kind: AdjustmentKind
    reason: str
    total_pico_usd: int
    lines: tuple[AdjustmentLine, ...]
    run_id: int | None
    state: str
    decided_at_us: int | None
    decided_by: str


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """A posted correction; a row of its own in reports and exports.

    Attributes:
        adjustment_id: Its number.
        at_us: When it was posted, microseconds since the epoch.
        period: The month that it counts in.
        original_period: The closed month that it is about; empty when it is `period`. Not empty
            means a correction of a period that was invoiced.
        kind: What it is.
        amount_pico_usd: Signed.
        team: Who pays; `unattributed` for nobody.
        project: Empty for none.
        account: Provider of the configuration, empty for none.
        model: Model at the provider, empty for all.
        meter: Empty for all.
        day: Original day of charge, empty for the whole month.
        event_id: Hexadecimal, empty for none.
        invoice_line_id: None when it follows from no line.
        proposal_id: Where its reason was approved.
        reason: One sentence.
        proposed_by: Who.
        approved_by: Who; the same only where a single person exists.
    """

    adjustment_id: int
    at_us: int
    period: str
    original_period: str
    kind: AdjustmentKind
    amount_pico_usd: int
    team: str
    project: str
    account: str
    model: str
    meter: str
    day: str
    event_id: str
    invoice_line_id: int | None
    proposal_id: int
    reason: str
    proposed_by: str
    approved_by: str


class ListAdjustments(msgspec.Struct, frozen=True, kw_only=True, tag="list_adjustments"):
    """Posted adjustments, by period and number.

    Attributes:
        from_period: First month, None for the beginning.
        to_period: First month that is no longer wanted, None for no end.
        team: Only this team's, None for all.
    """

    from_period: Month | None = None
    to_period: Month | None = None
    team: str | None = None


class Propose(msgspec.Struct, frozen=True, kw_only=True, tag="propose", forbid_unknown_fields=True):
    """Ask for adjustments by hand; they count once somebody else has approved them."""

    actor: str
    period: Month
    kind: AdjustmentKind
    reason: Annotated[str, Meta(min_length=1, max_length=1_000)]
    lines: Annotated[tuple[AdjustmentLine, ...], Meta(min_length=1, max_length=100_000)]


class Decide(msgspec.Struct, frozen=True, kw_only=True, tag="decide"):
    """Approve and post a proposal, or reject it.

    Attributes:
        actor: Who decides.
        proposal_id: Which.
        is_approved: False rejects it.
        is_alone: Whether nobody else could approve; the actor may then be the proposer.
    """

    actor: str
    proposal_id: int
    is_approved: bool
    is_alone: bool = False


class ListProposals(msgspec.Struct, frozen=True, kw_only=True, tag="list_proposals"):
    """Proposals, newest first; of one state when it is given."""

    state: str | None = None


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
    issued_on: Annotated[str, Meta(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")] = ""
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
        delay_days: Days before a run whose figures are not final yet.
    """

    quantity_ratio: str = "0.005"
    amount_ratio: str = "0.005"
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


class ListRuns(msgspec.Struct, frozen=True, kw_only=True, tag="list_runs"):
    """Runs, newest first; of one month when it is given."""

    month: Month | None = None


class ShowRun(msgspec.Struct, frozen=True, kw_only=True, tag="show_run"):
    """One run with its differences."""

    run_id: int
