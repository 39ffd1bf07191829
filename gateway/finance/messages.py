"""What commands and pages ask of finance, and what it answers; no database behind it.

This is of adjustments; bills, closes and the union of all requests have modules of their own.
Every request carries all that answering needs, so that the ledger process keeps no configuration
of its own. Months are `YYYY-MM`, days
`YYYY-MM-DD`, both in UTC; empty text means that a thing is not about one of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

PICO_USD_MAX = 9 * 10**18

MONTH_PATTERN = r"^(19|[2-8][0-9])[0-9]{2}-(0[1-9]|1[0-2])$"
"""A month from 1900 to 8999: what surely has a month before it and one after it."""
Month = Annotated[str, Meta(pattern=MONTH_PATTERN)]
Day = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
DayOrNone = Annotated[str, Meta(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")]
"""Empty for none."""
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
    day: DayOrNone = ""
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
        posted_us: Only what was posted in this half-open stretch of time, in microseconds since the
            epoch; None for all of it.
        of_month: Only those that count in this month, or are about it and count in a later one;
            None for all.
    """

    from_period: Month | None = None
    to_period: Month | None = None
    team: str | None = None
    posted_us: tuple[int, int] | None = None
    of_month: Month | None = None


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
        reason: Why, for the audit log; empty for none.
    """

    actor: str
    proposal_id: int
    is_approved: bool
    is_alone: bool = False
    reason: Text = ""


class ListProposals(msgspec.Struct, frozen=True, kw_only=True, tag="list_proposals"):
    """Proposals, newest first; of one state and about one month where they are given."""

    state: str | None = None
    period: Month | None = None
