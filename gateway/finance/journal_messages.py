"""What is asked and answered about the journal of a month."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.finance.messages import Month
from gateway.ledger.cost_centres import CostCentreBook
from gateway.ledger.views import CostCentre

_Word = Annotated[str, Meta(min_length=1, max_length=64)]


class JournalPosting(msgspec.Struct, frozen=True, kw_only=True):
    """How the configuration wants a journal.

    Attributes:
        entity: Company code.
        document_prefix: What document numbers begin with.
        currency: Of the lines, three letters of ISO 4217.
        exact_rate: Units of the currency per dollar, exact: `108/100` or `2`. As text, for its
            parts may be of any length.
        rate_day: The day that the rate is of, empty for dollars.
        rate_source: Who published it, empty for dollars.
        expense_account: Debited.
        tax_account: Debited with tax.
        clearing_account: Credited.
        clearing: Credited instead, by provider.
        rounding_account: For what rounding leaves over.
        cost_centres: Of teams and projects; that of an empty team is for spend of nobody.
    """

    entity: _Word
    document_prefix: _Word
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$")]
    exact_rate: Annotated[str, Meta(pattern=r"^[1-9][0-9]*(/[1-9][0-9]*)?$", max_length=256)]
    rate_day: str
    rate_source: str
    expense_account: _Word
    tax_account: _Word
    clearing_account: _Word
    clearing: Mapping[str, str]
    rounding_account: _Word
    cost_centres: tuple[CostCentre, ...]

    def rate(self) -> Fraction:
        """Units of the currency per dollar."""
        return Fraction(self.exact_rate)

    def book(self) -> CostCentreBook:
        """Finds cost centres."""
        return CostCentreBook(self.cost_centres)


class JournalLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line.

    Attributes:
        account: Posted to.
        cost_centre: Empty on the credit side.
        debit: Decimal text with the currency's digits; 0 on a credit line.
        credit: Decimal text with the currency's digits; 0 on a debit line.
        text: What it is for.
        amount_pico_usd: Before rounding and conversion; positive for a debit.
    """

    account: str
    cost_centre: str
    debit: str
    credit: str
    text: str
    amount_pico_usd: int


class JournalDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A month's journal as a document.

    Attributes:
        number: `FW-2026-10`, from the second revision on `FW-2026-10-2`; of a draft `DRAFT-…`.
        revision: From 1; 0 of a draft.
        period: The month.
        posting_date: Its last day.
        entity: Company code.
        currency: Of the lines.
        rate: Units of it per dollar, exact: a fraction or a whole number as text.
        rate_day: The day that the rate is of, empty for dollars.
        rate_source: Who published it, empty for dollars.
        lines: Debits equal credits.
        total: Of either side, decimal text.
        booked_pico_usd: What was booked in the month, as its close says.
        late_pico_usd: Usage of closed months that is counted in it.
        adjusted_pico_usd: Its adjustments.
        total_pico_usd: All three, and the sum of what the lines were before rounding.
        digest: SHA-256 of all that, in hex.
        issued_at_us: Microseconds since the epoch; None of a draft.
        issued_by: Who issued it, empty of a draft.
        is_current: Whether the configuration of now gives the same lines.
    """

    number: str
    revision: int
    period: str
    posting_date: str
    entity: str
    currency: str
    rate: str
    rate_day: str
    rate_source: str
    lines: tuple[JournalLine, ...]
    total: str
    booked_pico_usd: int
    late_pico_usd: int
    adjusted_pico_usd: int
    total_pico_usd: int
    digest: str = ""
    issued_at_us: int | None = None
    issued_by: str = ""
    is_current: bool = True

    @property
    def is_draft(self) -> bool:
        """Whether it may not be posted."""
        return self.issued_at_us is None


class ShowJournal(msgspec.Struct, frozen=True, kw_only=True, tag="show_journal"):
    """Ask for the journal of a month.

    Attributes:
        month: Which.
        posting: How it is wanted.
        is_draft: Whether a draft is wanted, of an open month too; else the one that was issued.
    """

    month: Month
    posting: JournalPosting
    is_draft: bool = False


class IssueJournal(msgspec.Struct, frozen=True, kw_only=True, tag="issue_journal"):
    """Issue the journal of a closed month; once issued it stays, and is what comes every time.

    Attributes:
        actor: Who issues it.
        month: Which.
        posting: How it is wanted.
        is_revision: Whether another one is issued where the configuration gives other lines now.
    """

    actor: str
    month: Month
    posting: JournalPosting
    is_revision: bool = False
