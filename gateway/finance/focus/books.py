"""What the books of finance say beside the ledger: adjustments, invoices, closed months.

A month's charges come with the range in which the month begins, so that exports of neighbouring
ranges tell each of them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, cast

import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.finance import commitments
from gateway.finance.adjustments import adjustments
from gateway.finance.bill_lines import BillLine, bill_lines, within
from gateway.finance.commitments import Bought
from gateway.finance.focus import committed, row_map
from gateway.finance.focus.charges import Charge, Owner
from gateway.finance.focus.committed import Coverage
from gateway.finance.focus.export import Export
from gateway.finance.focus.inputs import InvoiceCharge
from gateway.finance.focus.invoices import (
    ContractLine,
    InvoiceAllocation,
    InvoiceLine,
    PeriodClose,
)
from gateway.finance.focus.machine_time import MachineTime, machine_time
from gateway.finance.focus.meters import GPU_METER
from gateway.finance.focus.order import (
    DAY_US,
    ExportOrder,
    Parties,
    Profile,
    SelfHost,
    billing_months,
    instant_us,
)
from gateway.finance.focus.pseudonyms import Names
from gateway.finance.machines.report import COST_KINDS
from gateway.finance.messages import Adjustment, AdjustmentKind, ListAdjustments
from gateway.ledger import schema
from gateway.ledger.finance_tables import (
    invoice_line,
    period_close,
    spend_adjustment,
)
from gateway.ledger.periods import CLOSED, month_bounds_us, month_of, next_month
from pricing.commitments import Draws
from pricing.money import PICO_PER_USD

_USAGE = "usage"
_CREDIT, _TAX = "credit", "tax"
_CATEGORIES = {_USAGE: "Usage", _CREDIT: "Credit", _TAX: "Tax", "rounding": "Adjustment"}
_STAND_ON_INVOICES = frozenset({AdjustmentKind.CREDIT, AdjustmentKind.TAX, AdjustmentKind.ROUNDING})
"""Adjustments that repeat a line of an invoice; where invoices bill, the lines themselves do."""
_MOVE_ONLY = frozenset({AdjustmentKind.ALLOCATION, AdjustmentKind.REATTRIBUTION})


class _Line(NamedTuple):
    """A line of an invoice in force, or several of one currency together.

    Attributes:
        bill: The line, the first of several.
        amount_pico_usd: What is billed.
        amount: The same in the currency of the invoice.
        currency: Three letters.
    """

    bill: BillLine
    amount_pico_usd: int
    amount: Fraction
    currency: str

    @classmethod
    def of(cls, bill: BillLine) -> _Line:
        """A line as it was taken."""
        amount, _, currency = bill.said.partition(" ")
        return cls(bill, bill.amount_pico_usd, Fraction(amount), currency)

    @property
    def detail_id(self) -> str:
        """Unique among all lines: vendors repeat numbers."""
        return f"{self.bill.number}/{self.bill.invoice_id}-{self.bill.line}"

    @property
    def deployment(self) -> str | None:
        """The deployment that it names, None for all of its account."""
        return f"{self.bill.account}/{self.bill.model}" if self.bill.model else None

    @property
    def rate(self) -> Fraction:
        """Dollars per unit of its currency; 1 where nothing tells."""
        dollars = Fraction(self.amount_pico_usd, PICO_PER_USD)
        rate = dollars / self.amount if self.amount else Fraction(1)
        return rate if rate > 0 else Fraction(1)

    def plus(self, other: _Line) -> _Line:
        """This line, with the amounts of another one in the same currency."""
        return self._replace(
            amount_pico_usd=self.amount_pico_usd + other.amount_pico_usd,
            amount=self.amount + other.amount,
        )


@dataclass(frozen=True)
class Books:
    """A `FinanceSource` of the database.

    Attributes:
        connection: In the transaction of the export.
        profile: What is billed depends on it.
        now_us: What is unused is told of days before this one.
        self_host: What machines of the organisation are told at.
    """

    connection: sa.Connection
    profile: Profile
    now_us: int
    self_host: SelfHost = SelfHost.BOOKED
    _hours: dict[tuple[int, int], MachineTime] = field(
        default_factory=dict[tuple[int, int], MachineTime], init=False, repr=False, compare=False
    )

    def charges(self, from_us: int, to_us: int) -> Iterable[Charge]:
        """Adjustments of the range's months; where invoices bill, their lines that are no usage."""
        is_reconciled = self.profile is Profile.RECONCILED
        for month in _months(from_us, to_us):
            numbers = self._numbers(month)
            query = ListAdjustments(from_period=month, to_period=next_month(month))
            for one in adjustments(self.connection, query):
                if self.self_host is SelfHost.ACTUAL and _is_of_machines(one):
                    continue  # the shares hold it
                if not is_reconciled:
                    yield _adjusted(one, numbers)
                elif one.kind not in _STAND_ON_INVOICES:
                    yield _unbilled(_adjusted(one, numbers), one.kind)
            if is_reconciled:
                for line in self._lines(month):
                    if line.bill.kind != _USAGE:
                        yield _of_invoice(line, month)
        yield from self._commitments(from_us, to_us)
        if self.self_host is SelfHost.ACTUAL:
            for pool in self._machines(from_us, to_us).pools:
                yield from row_map.self_host(pool)

    def replaced(self, from_us: int, to_us: int) -> frozenset[tuple[str, int]]:
        """Hours of machines that are told as shares of what they cost."""
        if self.self_host is SelfHost.BOOKED:
            return frozenset()
        return self._machines(from_us, to_us).replaced

    def _machines(self, from_us: int, to_us: int) -> MachineTime:
        """The hours of a range; an export asks several times, of one range."""
        bounds = (from_us, to_us)
        if bounds not in self._hours:
            self._hours[bounds] = machine_time(self.connection, from_us, to_us)
        return self._hours[bounds]

    def allocations(self, from_us: int, to_us: int) -> Sequence[InvoiceAllocation]:
        """Usage lines of the range's invoices."""
        return [
            InvoiceAllocation(
                billing_us=month_bounds_us(month)[0],
                provider=line.bill.account,
                deployment=line.deployment,
                meter=line.bill.meter if line.bill.meter in schema.METERS else None,
                amount_pico_usd=line.amount_pico_usd,
                invoice_id=line.bill.number,
                detail_id=line.detail_id,
                currency=line.currency,
                rate=line.rate,
            )
            for month in _months(from_us, to_us)
            for line in self._lines(month)
            if line.bill.kind == _USAGE
        ]

    def invoice_lines(self, from_us: int, to_us: int) -> Sequence[InvoiceLine]:
        """Every line of the range's invoices, where they are what is billed."""
        if self.profile is not Profile.RECONCILED:
            return ()
        return [
            InvoiceLine(
                invoice_id=line.bill.number,
                detail_id=line.detail_id,
                provider=line.bill.account,
                billing_us=month_bounds_us(month)[0],
                category=_CATEGORIES[line.bill.kind],
                amount_pico_usd=line.amount_pico_usd,
                description=line.bill.description,
                issued_us=instant_us(line.bill.issued_on) if line.bill.issued_on else None,
                is_issued=bool(line.bill.issued_on),
                created_us=line.bill.taken_us,
                updated_us=line.bill.taken_us,
            )
            for month in _months(from_us, to_us)
            for line in self._lines(month)
        ]

    def contracts(self, from_us: int, to_us: int) -> Sequence[ContractLine]:
        """Commitments in force within the range, as they were recorded last."""
        today = from_microseconds(self.now_us).date()
        lines = [committed.contract(one, today=today) for one in commitments.load(self.connection)]
        return [line for line in lines if line.start_us < to_us and from_us < line.end_us]

    def coverage(self, from_us: int, to_us: int) -> Coverage:
        """What credits and throughput pay, from the beginning of the range's first day."""
        bought, draws = self._drawn
        first, last = from_microseconds(from_us).date(), from_microseconds(to_us - 1).date()
        cover = Coverage.of(bought, draws)
        return Coverage(
            {place: parts for place, parts in cover.parts.items() if first <= place[0] <= last}
        )

    def closes(self, from_us: int, to_us: int) -> Sequence[PeriodClose]:
        """Months of the range that are closed."""
        table = period_close
        wanted = sa.select(table.c.month, table.c.closed_at_us).where(
            table.c.state == CLOSED, table.c.month.between(month_of(from_us), month_of(to_us))
        )
        rows = self.connection.execute(wanted.order_by(table.c.month)).all()
        return [
            PeriodClose(billing_us=month_bounds_us(month)[0], closed_us=closed_at_us)
            for month, closed_at_us in cast("Sequence[tuple[str, int]]", rows)
        ]

    def _commitments(self, from_us: int, to_us: int) -> Iterator[Charge]:
        bought, draws = self._drawn
        today = from_microseconds(self.now_us).date()
        for month in _months(from_us, to_us):
            for one in bought:
                yield from committed.charges(one, draws, month, today=today)

    @cached_property
    def _drawn(self) -> tuple[Sequence[Bought], Draws]:
        """Every commitment, and what was drawn until today; of all usage, so worked out once."""
        bought = commitments.load(self.connection)
        today = from_microseconds(self.now_us).date()
        return bought, commitments.drawn(self.connection, bought, until=today)

    def _lines(self, month: str) -> list[_Line]:
        """Lines about a month of invoices that no later file replaced, in the order of taking.

        Vendors bill usage by the day; one line of an export stands for all days of an invoice.
        """
        found: dict[tuple[object, ...], _Line] = {}
        for line in map(_Line.of, bill_lines(self.connection, *within(invoice_line.c.day, month))):
            bill = line.bill
            place = (bill.invoice_id, bill.model, bill.meter, line.currency)
            key = place if bill.kind == _USAGE else (bill.line_id,)
            known = found.get(key)
            found[key] = line if known is None else known.plus(line)
        return list(found.values())

    def _numbers(self, month: str) -> Mapping[int, tuple[str, str]]:
        """Number and detail of the invoice lines behind a month's adjustments, by the line's id."""
        posted = spend_adjustment
        behind = sa.select(posted.c.invoice_line_id).where(posted.c.period == month)
        lines = map(_Line.of, bill_lines(self.connection, invoice_line.c.id.in_(behind)))
        return {line.bill.line_id: (line.bill.number, line.detail_id) for line in lines}


def open_export(
    connection: sa.Connection,
    order: ExportOrder,
    *,
    parties: Parties,
    pseudonym_key: bytes,
    now_us: int,
) -> Export:
    """An export of the ledger and the books.

    Args:
        connection: In one transaction until the export is taken.
        order: Checked.
        parties: Who stands on it.
        pseudonym_key: What pseudonyms are derived with.
        now_us: Microseconds since the epoch.

    Raises:
        BadOrder: The profile does not fit the range.
    """
    names = Names(order.names, key=pseudonym_key, declared_tags=parties.declared_tags)
    source = Books(connection, order.profile, now_us, order.self_host)
    return Export(order=order, parties=parties, names=names, source=source)


def _is_of_machines(one: Adjustment) -> bool:
    """Whether it brings what was booked for a machine to what that cost."""
    return one.meter == GPU_METER and one.kind.value in COST_KINDS


def _months(from_us: int, to_us: int) -> list[str]:
    return [month_of(month_us) for month_us in billing_months(from_us, to_us)]


def _adjusted(one: Adjustment, numbers: Mapping[int, tuple[str, str]]) -> Charge:
    """An adjustment as a row of its own."""
    period = one.original_period or one.period
    start_us, end_us = month_bounds_us(period)
    if one.day:
        start_us = instant_us(one.day)
        end_us = start_us + DAY_US
    number, detail_id = numbers.get(one.invoice_line_id or 0, (None, None))
    charge = InvoiceCharge(
        provider=one.account,
        start_us=start_us,
        end_us=end_us,
        amount_pico_usd=one.amount_pico_usd,
        description=one.reason,
        owner=Owner(team=one.team, project=one.project),
        invoice_id=number,
        detail_id=detail_id,
        is_correction=bool(one.original_period),
        original_us=start_us if one.original_period else None,
        billing_us=month_bounds_us(one.period)[0],
    )
    return _row(charge, one.kind.value)


def _unbilled(charge: Charge, kind: AdjustmentKind) -> Charge:
    """What follows from usage that an invoice bills already is not billed a second time."""
    return charge if kind in _MOVE_ONLY else row_map.unbilled(charge)


def _of_invoice(line: _Line, month: str) -> Charge:
    start_us, end_us = month_bounds_us(month)
    charge = InvoiceCharge(
        provider=line.bill.account,
        start_us=start_us,
        end_us=end_us,
        amount_pico_usd=line.amount_pico_usd,
        description=line.bill.description or _CATEGORIES[line.bill.kind],
        invoice_id=line.bill.number,
        detail_id=line.detail_id,
    )
    return _row(charge, line.bill.kind)


def _row(charge: InvoiceCharge, kind: str) -> Charge:
    """By its kind; a credit that costs something is an adjustment, for credits give."""
    if kind == _TAX:
        return row_map.tax(charge)
    if kind == _CREDIT and charge.amount_pico_usd < 0:
        return row_map.credit(charge)
    return row_map.adjustment(charge)
