"""How the configuration wants a month's journal: accounts, cost centres, currency and rate."""

from __future__ import annotations

from datetime import date, timedelta

from gateway.finance.errors import Refused
from gateway.finance.journal_messages import JournalPosting
from gateway.finance.spend_question import Reporting
from gateway.ledger.errors import BadQuery
from gateway.ledger.periods import next_month
from gateway.ledger.views import USD


def journal_posting(reporting: Reporting, month: str) -> JournalPosting:
    """What a request for a month's journal says; reads the rates file where one is needed.

    The rate is that of the last day of the month, or of the nearest day of the week before it.

    Args:
        reporting: Of the configuration.
        month: `YYYY-MM`.

    Raises:
        FinanceError: No journal is configured, or there is no exchange rate.
    """
    settings = reporting.finance.journal
    if settings is None:
        raise Refused("no journal is configured; name its accounts in finance.journal")
    accounts = settings.accounts
    currency = settings.currency or reporting.finance.currency
    last = date.fromisoformat(f"{next_month(month)}-01") - timedelta(days=1)
    rate, day, source = "1", "", ""
    if currency != USD:
        try:
            found = reporting.load_rates(currency).rate(last, USD, currency)
        except BadQuery as error:
            raise Refused(str(error)) from error
        rate = str(found.rate)
        day, source = found.day.isoformat(), found.source
    return JournalPosting(
        entity=settings.entity,
        document_prefix=settings.document_prefix,
        currency=currency,
        exact_rate=rate,
        rate_day=day,
        rate_source=source,
        expense_account=accounts.expense,
        tax_account=accounts.tax or accounts.expense,
        clearing_account=accounts.clearing,
        clearing=dict(accounts.providers),
        rounding_account=accounts.rounding,
        cost_centres=reporting.cost_centres,
    )
