"""What is asked of commitments and prepaid credits, and what is answered; no database behind it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.finance.messages import Day, Text
from pricing.commitments import CommitmentKind

NAME_CHARS_MAX = 64
DAYS_MAX = 3_700
Name = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARS_MAX - 1}}}$")]


class RecordCommitment(
    msgspec.Struct, frozen=True, kw_only=True, tag="record_commitment", forbid_unknown_fields=True
):
    """Record what was bought or promised, or correct it.

    Attributes:
        actor: Who does it.
        name: What it is called; recording the same under it twice changes nothing.
        kind: How it is paid and used.
        provider: Provider of the configuration: the account at the vendor.
        deployments: Names, `provider/model-id`; empty for all of the provider.
        amount: Decimal text in the currency, above 0.
        currency: Three letters of ISO 4217.
        first_day: First day (UTC) on which usage is drawn.
        last_day: Last one.
        invoice: Number of the invoice, empty for none.
        is_correction: Whether it takes the place of what was recorded under the name.
        reason: Why it is corrected; empty otherwise.
        rates: Text of the rates file, None without one.
        rates_name: Its name, for errors.
    """

    actor: str
    name: Name
    kind: CommitmentKind
    provider: Annotated[str, Meta(min_length=1, max_length=128)]
    amount: Annotated[str, Meta(max_length=40)]
    first_day: Day
    last_day: Day
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$")] = "USD"
    deployments: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
    invoice: Annotated[str, Meta(max_length=128)] = ""
    is_correction: bool = False
    reason: Text = ""
    rates: str | None = None
    rates_name: str = "finance.rates_file"


class WithdrawCommitment(msgspec.Struct, frozen=True, kw_only=True, tag="withdraw_commitment"):
    """Let a commitment draw nothing any more, because it was cancelled or recorded by mistake."""

    actor: str
    name: Name
    reason: Annotated[str, Meta(min_length=1, max_length=512)]


class ListCommitments(msgspec.Struct, frozen=True, kw_only=True, tag="list_commitments"):
    """Where every commitment stands."""


class RecordReply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a recording.

    Attributes:
        name: The commitment.
        revision: 1 for the first recording, one more with each correction.
        is_new: False where the same stood there already.
        counts_from: First day that it says anything about: the first of the oldest open month,
            where its own first day lies before that.
        amount_pico_usd: The amount in dollars.
    """

    name: str
    revision: int
    is_new: bool
    counts_from: str
    amount_pico_usd: int


class CommitmentDay(msgspec.Struct, frozen=True, kw_only=True):
    """A day of a commitment.

    Attributes:
        day: UTC.
        drawn_pico_usd: What was drawn from it.
        left_pico_usd: What was left in the evening; of throughput, of the whole term.
        unused_pico_usd: What is gone without having been used.
    """

    day: str
    drawn_pico_usd: int
    left_pico_usd: int
    unused_pico_usd: int


class CommitmentStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A commitment, and where it stands at the end of yesterday.

    Attributes:
        name: What it is called.
        revision: Of its latest recording.
        kind: How it is paid and used.
        state: `coming`, `open`, `used_up`, `over` or `withdrawn`.
        provider: The account.
        deployments: Empty for all of the provider.
        currency: Of the amount.
        amount: Decimal text, in the currency.
        amount_pico_usd: In dollars, at the rate of the day that the rates file has for the first.
        first_day: First day on which usage is drawn.
        last_day: Last one.
        counts_from: First day that its latest recording says anything about.
        invoice: Empty for none.
        recorded_at_us: When it was recorded last, microseconds since the epoch.
        recorded_by: Who did.
        reason: Of the latest correction.
        drawn_pico_usd: In all.
        unused_pico_usd: What is gone without having been used, in all; of a spend commitment, what
            is owed.
        left_pico_usd: What can still be drawn.
        pace_pico_usd: Mean of the last days.
        runs_out_on: When nothing will be left; None where it lasts until its end.
        runs_out_early: The same at one edge of the band.
        runs_out_late: The same at the other one.
        band_percent: How often the band held in the past, None where the history is too short.
        days: Each day until yesterday, the newest 400.
    """

    name: str
    revision: int
    kind: CommitmentKind
    state: str
    provider: str
    deployments: tuple[str, ...]
    currency: str
    amount: str
    amount_pico_usd: int
    first_day: str
    last_day: str
    counts_from: str
    invoice: str
    recorded_at_us: int
    recorded_by: str
    reason: str
    drawn_pico_usd: int
    unused_pico_usd: int
    left_pico_usd: int
    pace_pico_usd: int
    runs_out_on: str | None
    runs_out_early: str | None
    runs_out_late: str | None
    band_percent: int | None
    days: tuple[CommitmentDay, ...]
