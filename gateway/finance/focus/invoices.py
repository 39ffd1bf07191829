"""What invoices say, and how their amounts are spread over what was metered.

An amount is spread over the rows that it pays for in proportion to their contracted cost: the
running share is rounded, so that the parts add up to the invoice exactly, whatever their number,
and no row has to wait for the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from gateway.finance.focus.charges import LEDGER_CURRENCY, Charge, ChargeKind, Invoice
from gateway.finance.focus.inputs import InvoiceCharge
from gateway.finance.focus.order import billing_period

_SPREAD_OVER = frozenset({ChargeKind.USAGE, ChargeKind.CORRECTION})
"""What invoices bill by meter; commitments are paid with their purchase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceAllocation:
    """What an invoice bills for a part of a month's usage.

    Attributes:
        billing_us: Any instant of the billing period.
        provider: Who issued it.
        deployment: For one deployment, None for all that no narrower one names.
        meter: For one meter, None for all that no narrower one names.
        amount_pico_usd: What is billed.
        invoice_id: The invoice.
        detail_id: Its line, None where lines have no id.
        currency: Three letters of ISO 4217: what the invoice is in.
        rate: Dollars per unit of the currency that the amount was converted at, above 0.
    """

    billing_us: int
    provider: str
    deployment: str | None
    meter: str | None
    amount_pico_usd: int
    invoice_id: str
    detail_id: str | None = None
    currency: str = LEDGER_CURRENCY
    rate: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """What invoices bill of a charge.

    Attributes:
        amount_pico_usd: The charge's part.
        invoice: Where it stands.
        currency: What the invoice is in; dollars where several are in different ones.
        rate: Dollars per unit of the currency.
    """

    amount_pico_usd: int
    invoice: Invoice
    currency: str
    rate: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceLine:
    """A line of an invoice for the dataset Invoice Detail; instants in microseconds."""

    invoice_id: str
    detail_id: str
    provider: str
    billing_us: int
    category: str
    amount_pico_usd: int
    description: str
    issued_us: int | None
    is_issued: bool
    created_us: int
    updated_us: int
    due_us: int | None = None
    payment_terms: str = "Not stated"
    reference_invoice_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractLine:
    """A commitment for the dataset Contract Commitment; instants in microseconds.

    Attributes:
        duration: Such as `1 Month`.
        cost_pico_usd: What is committed in money, None for a quantity.
        quantity: What is committed, scaled, None for money.
        interval: How often it has to be met: `Monthly`, `Full Period` …
    """

    contract_id: str
    commitment_id: str
    description: str
    provider: str
    type: str
    is_spend: bool
    start_us: int
    end_us: int
    duration: str
    interval: str
    is_upfront: bool
    status: str
    cost_pico_usd: int | None
    quantity: int | None
    unit: str | None
    created_us: int
    updated_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodClose:
    """That a month is closed, and since when."""

    billing_us: int
    closed_us: int


_Key = tuple[int, str, str | None, str | None]


@dataclass(slots=True)
class _Share:
    """How far an allocation is spread."""

    allocation: InvoiceAllocation
    metered_pico_usd: int = 0
    passed_pico_usd: int = 0
    billed_pico_usd: int = 0


@dataclass(slots=True)
class Spread:
    """Spreads allocations over charges: `count` each of them first, then ask for each again."""

    _shares: dict[_Key, list[_Share]] = field(default_factory=dict)

    @staticmethod
    def of(allocations: Iterable[InvoiceAllocation]) -> Spread:
        """Allocations of several invoices for the same usage add up."""
        spread = Spread()
        for one in allocations:
            key = (billing_period(one.billing_us)[0], one.provider, one.deployment, one.meter)
            spread._shares.setdefault(key, []).append(_Share(one))
        return spread

    def count(self, charge: Charge) -> None:
        """Take note of a charge that shall bear a part."""
        for share in self._of(charge):
            share.metered_pico_usd += charge.costs.contracted_pico_usd

    def billed(self, charge: Charge) -> Billed | None:
        """The charge's part, and the invoice it stands on; None when no invoice covers it."""
        shares = self._of(charge)
        if not shares:
            return None
        part_pico_usd = 0
        for share in shares:
            share.passed_pico_usd += charge.costs.contracted_pico_usd
            if share.metered_pico_usd:
                until = share.allocation.amount_pico_usd * share.passed_pico_usd
                part = until // share.metered_pico_usd - share.billed_pico_usd
                share.billed_pico_usd += part
                part_pico_usd += part
        first = shares[0].allocation
        is_one = len({(one.allocation.currency, one.allocation.rate) for one in shares}) == 1
        return Billed(
            amount_pico_usd=part_pico_usd,
            invoice=Invoice(invoice_id=first.invoice_id, detail_id=first.detail_id),
            currency=first.currency if is_one else LEDGER_CURRENCY,
            rate=first.rate if is_one else Fraction(1),
        )

    def left(self) -> Iterator[InvoiceCharge]:
        """What was invoiced and has no metered usage to bear it."""
        for shares in self._shares.values():
            for share in shares:
                one = share.allocation
                if share.billed_pico_usd == one.amount_pico_usd:
                    continue
                start_us, end_us = billing_period(one.billing_us)
                what = one.deployment or one.provider
                yield InvoiceCharge(
                    provider=one.provider,
                    start_us=start_us,
                    end_us=end_us,
                    amount_pico_usd=one.amount_pico_usd - share.billed_pico_usd,
                    description=f"Invoiced for {what}, not metered",
                    invoice_id=one.invoice_id,
                    detail_id=one.detail_id,
                )

    def _of(self, charge: Charge) -> Sequence[_Share]:
        """The narrowest allocations that cover a charge."""
        if charge.kind not in _SPREAD_OVER:
            return ()
        month_us = billing_period(charge.billing_us)[0]
        place = charge.resource
        for deployment, meter in (
            (place.deployment, charge.meter),
            (place.deployment, None),
            (None, charge.meter),
            (None, None),
        ):
            shares = self._shares.get((month_us, place.provider, deployment, meter))
            if shares is not None:
                return shares
        return ()
