"""Which usage commitments paid for, row by row; what was bought, and what nobody used.

What is drawn on a day from a deployment's usage is known before (`gateway.finance.commitments`);
here it is handed to the day's rows in their order, until it is used up. The row in which it ends is
told as two, whose amounts and quantities add up to it. A spend commitment is no such payment: its
usage is billed as ever, and what is missing at its end is a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta

from gateway.clock import from_microseconds
from gateway.finance.commitments import Bought, Recording
from gateway.finance.focus import row_map
from gateway.finance.focus.charges import LEDGER_CURRENCY, SCALE, Charge, VendorCurrency
from gateway.finance.focus.inputs import (
    Commitment,
    CommittedUse,
    InvoiceCharge,
    LateUsage,
    Purchase,
    UnusedCommitment,
    UsageSum,
)
from gateway.finance.focus.invoices import ContractLine
from gateway.finance.focus.order import DAY_US, instant_us
from gateway.ledger.periods import month_bounds_us, month_of
from pricing.commitments import CommitmentKind, Draws
from pricing.money import parse_usd
from pricing.shares import split

_TYPES: Mapping[CommitmentKind, str] = {
    CommitmentKind.CREDIT: "Prepaid Credit",
    CommitmentKind.SPEND: "Spend Commitment",
    CommitmentKind.THROUGHPUT: "Provisioned Throughput",
}


@dataclass(slots=True)
class Coverage:
    """Hands what was drawn to rows; one for each time that the rows are gone through.

    Attributes:
        parts: By day and deployment: commitments and what is left to hand out.
    """

    parts: dict[tuple[date, str], list[tuple[Commitment, int]]] = field(
        default_factory=dict[tuple[date, str], list[tuple[Commitment, int]]]
    )

    @staticmethod
    def of(bought: Sequence[Bought], draws: Draws) -> Coverage:
        """What credits and throughput pay."""
        known = {
            one.first.number: commitment_of(one)
            for one in bought
            if CommitmentKind(one.first.kind) is not CommitmentKind.SPEND
        }
        return Coverage(
            {
                place: [(known[number], amount) for number, amount in parts if number in known]
                for place, parts in draws.parts.items()
            }
        )

    def usage(self, found: UsageSum) -> Iterator[Charge]:
        """A row of usage: as it is, or as what each commitment paid and the rest."""
        day = from_microseconds(found.start_us).date()
        for part, payer in self._pieces(found, day):
            yield row_map.usage(part) if payer is None else _committed(part, payer)

    def late(self, found: LateUsage) -> Iterator[Charge]:
        """The same of usage that counts in a later month: it is drawn on that month's first day."""
        day = from_microseconds(month_bounds_us(month_of(found.billing_us))[0]).date()
        for part, payer in self._pieces(found.usage, day):
            late = replace(found, usage=part)
            charge = row_map.correction(late)
            if payer is not None:
                charge = replace(
                    _committed(part, payer),
                    is_correction=True,
                    billing_us=late.billing_us,
                    original_us=charge.original_us,
                )
            yield charge

    def _pieces(self, found: UsageSum, day: date) -> Iterator[tuple[UsageSum, Commitment | None]]:
        left = self.parts.get((day, found.resource.deployment))
        if not left or not found.cost_pico_usd:
            yield found, None
            return
        cost = found.cost_pico_usd
        payers: list[tuple[Commitment | None, int]] = []
        while left and cost:
            payer, amount = left[0]
            part = min(cost, amount)
            cost -= part
            payers.append((payer, part))
            if part == amount:
                del left[0]
            else:
                left[0] = (payer, amount - part)
        if cost:
            payers.append((None, cost))
        weights = [amount for _, amount in payers]
        for place, (part, (payer, _)) in enumerate(
            zip(_split(found, weights), payers, strict=True)
        ):
            # Requests and attempts are counted once.
            counted = part if not place else replace(part, requests=0, attempts=0)
            yield counted, payer


def _split(found: UsageSum, weights: Sequence[int]) -> Iterator[UsageSum]:
    """A row as several; counts are shared in proportion to the cost, and add up."""
    if len(weights) == 1:
        yield found
        return
    units, tokens = split(found.units, weights), split(found.tokens, weights)
    listed = None
    if found.list_cost_pico_usd is not None:
        listed = split(found.list_cost_pico_usd, weights)
    for place, cost in enumerate(weights):
        yield replace(
            found,
            units=units[place],
            tokens=tokens[place],
            cost_pico_usd=cost,
            list_cost_pico_usd=None if listed is None else listed[place],
        )


def _committed(part: UsageSum, payer: Commitment) -> Charge:
    return row_map.committed_usage(
        CommittedUse(
            usage=part,
            commitment=payer,
            quantity=part.cost_pico_usd,
            amortised_pico_usd=part.cost_pico_usd,
        )
    )


def commitment_of(one: Bought) -> Commitment:
    """A commitment as rows name it; its quantity is money."""
    kind = CommitmentKind(one.first.kind)
    return Commitment(
        commitment_id=one.first.name,
        name=one.first.name,
        provider=one.last.provider,
        is_spend=True,
        type=_TYPES[kind],
        unit=LEDGER_CURRENCY,
    )


def charges(one: Bought, draws: Draws, month: str, *, today: date) -> Iterator[Charge]:
    """What a commitment adds to a month beside its usage: the purchase, and what is gone unused.

    Args:
        one: The commitment.
        draws: Of all days until today.
        month: `YYYY-MM`.
        today: What is unused is told of days before.
    """
    kind = CommitmentKind(one.first.kind)
    start_us, end_us = month_bounds_us(month)
    first, after = from_microseconds(start_us).date(), from_microseconds(end_us).date()
    if kind is not CommitmentKind.SPEND:
        yield from _purchase(one, draws, first, after)
    unused = {
        day: amount
        for day, amount in draws.unused[one.first.number].items()
        if first <= day < min(after, today)
    }
    if not unused:
        return
    amount = sum(unused.values())
    last_us = instant_us(max(unused).isoformat()) + DAY_US
    if kind is CommitmentKind.SPEND:
        yield row_map.adjustment(
            InvoiceCharge(
                provider=one.last.provider,
                start_us=last_us - DAY_US,
                end_us=last_us,
                amount_pico_usd=amount,
                description=f"Shortfall of spend commitment {one.first.name}, owed at its end",
            )
        )
        return
    is_daily = kind is CommitmentKind.THROUGHPUT
    yield row_map.unused_commitment(
        UnusedCommitment(
            commitment=commitment_of(one),
            start_us=instant_us(min(unused).isoformat()) if is_daily else last_us - DAY_US,
            end_us=last_us,
            quantity=amount,
            unit_price_pico_usd=SCALE,
            wasted_pico_usd=amount,
        )
    )


def _purchase(one: Bought, draws: Draws, first: date, after: date) -> Iterator[Charge]:
    """What was bought in a month: the amount at its end, less that at its beginning."""
    before, then = _paid(one, draws, first), _paid(one, draws, after)
    amount = then - before
    if not amount:
        return
    holding = one.last
    for recording in one.recordings:
        if recording.counts_from < after.isoformat():
            holding = recording
    month_us = instant_us(first.isoformat())
    if amount < 0:
        charge = row_map.adjustment(
            InvoiceCharge(
                provider=holding.provider,
                start_us=month_us,
                end_us=instant_us(after.isoformat()),
                amount_pico_usd=amount,
                description=f"Correction of commitment {holding.name}: {holding.reason}",
                invoice_id=holding.invoice or None,
            )
        )
        # Its use carries the effective cost, as with the purchase.
        yield replace(charge, costs=replace(charge.costs, effective_pico_usd=0))
        return
    charge = row_map.purchase(
        Purchase(
            commitment=commitment_of(one),
            start_us=instant_us(holding.first_day),
            end_us=instant_us(holding.last_day) + DAY_US,
            quantity=amount,
            paid_pico_usd=amount,
            is_recurring=False,
            invoice_id=holding.invoice or None,
        )
    )
    yield replace(charge, billing_us=month_us, currency=_currency(holding))


def _paid(one: Bought, draws: Draws, before: date) -> int:
    """What is paid for it by what counted before a day; of what was withdrawn, what was used."""
    known: Recording | None = None
    for recording in one.recordings:
        if recording.counts_from < before.isoformat():
            known = recording
    if known is None:
        return 0
    if not known.is_withdrawn:
        return known.amount_pico_usd
    number, end = one.first.number, date.fromisoformat(known.counts_from)
    return sum(
        amount
        for by_day in (draws.drawn[number], draws.unused[number])
        for day, amount in by_day.items()
        if day < end
    )


def _currency(holding: Recording) -> VendorCurrency | None:
    """The currency that was paid in, None for dollars."""
    if holding.currency == LEDGER_CURRENCY:
        return None
    amount, dollars = parse_usd(holding.amount), holding.amount_pico_usd
    price = round_half_even(SCALE * amount, dollars)
    return VendorCurrency(
        code=holding.currency,
        list_unit_price=price,
        contracted_unit_price=price,
        effective_cost=0,
        pico_usd_per_unit=round_half_even(SCALE * dollars, amount),
    )


def round_half_even(number: int, by: int) -> int:
    """The nearest whole number of a quotient, half to even."""
    whole, rest = divmod(number, by)
    twice = 2 * rest - by
    return whole + (twice > 0 or (twice == 0 and whole % 2 == 1))


def contract(one: Bought, *, today: date) -> ContractLine:
    """A commitment in the dataset Contract Commitment."""
    last, kind = one.last, CommitmentKind(one.first.kind)
    first_day, last_day = date.fromisoformat(last.first_day), date.fromisoformat(last.last_day)
    days = (last_day - first_day).days + 1
    status = "Active"
    if last.is_withdrawn:
        status = "Cancelled"
    elif last_day < today:
        status = "Expired"
    elif first_day > today:
        status = "Pending"
    return ContractLine(
        contract_id=last.invoice or last.name,
        commitment_id=last.name,
        description=f"{_TYPES[kind]} {last.name}, {last.amount} {last.currency}",
        provider=last.provider,
        type=_TYPES[kind],
        is_spend=True,
        start_us=instant_us(last.first_day),
        end_us=instant_us((last_day + timedelta(days=1)).isoformat()),
        duration="1 Day" if days == 1 else f"{days} Days",
        interval="Full Period",
        is_upfront=kind is not CommitmentKind.SPEND,
        status=status,
        cost_pico_usd=last.amount_pico_usd,
        quantity=None,
        unit=None,
        created_us=one.first.at_us,
        updated_us=last.at_us,
    )
